"""The lab on real namespaces: rates hold, commands run as under torchrun, nothing outlives it."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.errors import BadInput
from dovetail.lab import Lab, busy, environment, measure_rate
from dovetail.lab.run import run

pytestmark = pytest.mark.lab
SRC = str(Path(__file__).parents[2] / "src")


def host_names() -> set[str]:
    return set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set()


def wait_until_gone(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat")
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def carries(lab: Lab, source: int, target: int, rate: float) -> None:
    """The link carries `rate` and no more; a machine that pauses can only slow a stream, so the best of 3 counts."""
    best = 0.0
    for _ in range(3):
        best = max(best, measure_rate(lab, source, target, seconds=0.8))
        if best > 0.8 * rate:
            break
    assert 0.8 * rate < best < 1.05 * rate


def test_a_stream_gets_its_rate_and_a_changed_rate() -> None:
    with Lab(2, 25e6) as lab:
        carries(lab, 0, 1, 25e6)
        lab.set_rate(1, 5e6)
        carries(lab, 0, 1, 5e6)
        lab.set_rate(1, 0)
        lab.set_rate(0, 0)
        assert measure_rate(lab, 0, 1, seconds=0.3) > 30e6


def test_busy_links_leave_a_stream_a_share_and_are_free_afterwards() -> None:
    with Lab(2, 20e6) as lab:
        with busy(lab, 2):
            assert measure_rate(lab, 0, 1, seconds=1.0) < 0.8 * 20e6
        carries(lab, 0, 1, 20e6)


def test_a_rack_uplink_is_narrow_and_the_rack_is_not() -> None:
    with Lab(4, 20e6, racks=2, uplink=5e6) as lab:
        carries(lab, 0, 1, 20e6)
        carries(lab, 0, 2, 5e6)


def test_every_host_gets_torchruns_environment_and_the_first_failure_wins() -> None:
    out = io.StringIO()
    with Lab(3, 0.0) as lab:
        script = "echo $RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT; test $RANK = 1 && exit 7; sleep 60"
        began = time.monotonic()
        assert run(lab, ["sh", "-c", script], out=out) == 7
        assert time.monotonic() - began < 10
    assert set(out.getvalue().splitlines()) >= {"host1 | 1/3 10.71.0.1:29500"}


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_ends_its_commands(sign: signal.Signals, code: int, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/$RANK; sleep 60"
    argv = [sys.executable, "-m", "dovetail.cli.main", "lab", "run", "--hosts", "2", "--", "sh", "-c", script]
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": SRC}, stdout=subprocess.PIPE)
    signal.signal(signal.SIGINT, inherited)
    until = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(sign)
    output, _ = process.communicate(timeout=15)  # ends only when nobody holds the output any more
    assert process.returncode == code, output


def test_hubs_are_named_in_the_environment() -> None:
    with Lab(1, 0.0, hubs=2) as lab:
        assert environment(lab, 0)["DOVETAIL_HUBS"].split(",")[1].startswith(lab.address("hub1") + ":")
    with Lab(1, 0.0) as lab:
        assert "DOVETAIL_HUBS" not in environment(lab, 0)


def test_closing_ends_what_runs_and_leaves_others_namespaces_alone() -> None:
    before = host_names()
    with Lab(2, 1e6) as lab:
        process = lab.popen(0, ["sleep", "60"])
        assert host_names() == before, "the lab's names are its own business"
        assert process.poll() is None
    assert process.poll() is not None
    assert host_names() == before


def test_a_killed_owner_takes_the_lab_along() -> None:
    script = (
        "import time\nfrom dovetail.lab import Lab\nlab = Lab(2, 1e6)\n"
        "lab.popen(1, ['sh', '-c', 'sleep 60 & sleep 60'])\nprint(lab._keeper.pid, flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": SRC}
    )
    assert owner.stdout is not None
    keeper = int(owner.stdout.readline())
    namespace = os.readlink(f"/proc/{keeper}/ns/pid")
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert wait_until_gone(keeper, 5)
    assert not [p for p in Path("/proc").glob("[0-9]*") if _namespace(p) == namespace]


def _namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns" / "pid")
    except OSError:
        return ""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becomes another user to try without root")
def test_without_roots_rights_a_user_namespace_serves() -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    imports = "import sys\nsys.path.insert(0, sys.argv[1])\nfrom dovetail.lab.box import Lab\n"
    pythons = [
        p for p in (sys.executable, "/usr/bin/python3")
        if subprocess.run([*nobody, p, "-c", imports, SRC], capture_output=True, cwd="/").returncode == 0
    ]  # fmt: skip
    if not pythons:
        pytest.skip("no Python that another user may run sees this checkout")
    script = imports + "with Lab(2, 10e6) as lab: print(lab.run(1, ['ip', 'addr']).stdout.count(lab.address(1)))\n"
    done = subprocess.run([*nobody, pythons[0], "-c", script, SRC], capture_output=True, text=True, timeout=60, cwd="/")
    if "not allowed" in done.stderr:
        pytest.skip("unprivileged user namespaces are off on this machine")
    assert done.stdout == "1\n", done.stderr


def test_an_unknown_host_is_named() -> None:
    with Lab(1, 0.0) as lab, pytest.raises(BadInput, match="'host7'; it has host0"):
        lab.address("host7")
