"""`dovetail probe` as it is typed: on every host of a list at once; the first one writes what all have found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness import free_port


def test_hosts_of_a_list_are_probed_and_drawn(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("127.0.0.1 slots=2\nother:29500\n")
    argv = [sys.executable, "-m", "dovetail.cli.main", "probe", "hosts.txt", "--port", str(free_port())]
    argv += ["--echoes", "5", "--bulk", "16KiB", "--html", "page.html", "--json", "found.json"]
    hosts = [
        subprocess.Popen(
            [*argv, "--rank", str(r)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for r in range(2)
    ]
    try:
        said = [host.communicate(timeout=150)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], said
    assert "group 0: " in said[0]
    assert "group" not in said[1]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["matrix"]["hosts"] == ["127.0.0.1", "other"]
    assert json.loads((tmp_path / "probe.json").read_text())["format"] == "dovetail.probematrix"
    assert "bandwidth, Mbit" in (tmp_path / "page.html").read_text()


def test_a_list_without_this_host_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("198.51.100.1\n198.51.100.2\n")
    argv = [sys.executable, "-m", "dovetail.cli.main", "probe", "hosts.txt"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "give --rank 0..1" in done.stderr or "no route to 198.51.100.1" in done.stderr
