"""torchrun's elastic restart: a killed worker costs the steps since the last checkpoint and changes no number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic.py"
STEPS, EVERY, KILLED = 16, 5, 13


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1", str(EXAMPLE)]
    command += ["--steps", str(STEPS), "--every", str(EVERY), "--checkpoint", str(folder / "last.pt")]
    command += ["--losses", str(folder / "losses"), *more]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


def logged(folder: Path) -> list[tuple[int, float]]:
    lines = (line.split() for line in (folder / "losses").read_text().splitlines())
    return [(int(step), float(loss)) for step, loss in lines]


def test_a_killed_worker_changes_no_loss(tmp_path: Path) -> None:
    runs = {"calm": start(tmp_path / "calm"), "killed": start(tmp_path / "killed", "--kill-at", str(KILLED))}
    try:
        said = {name: process.communicate(timeout=120)[0] for name, process in runs.items()}
    finally:
        for process in runs.values():
            process.kill()
    assert [process.returncode for process in runs.values()] == [0, 0], said
    assert f"attempt 1: goes on at step {KILLED // EVERY * EVERY}" in said["killed"], said["killed"]
    calm, killed = logged(tmp_path / "calm"), logged(tmp_path / "killed")
    assert [step for step, _ in calm] == list(range(STEPS))
    assert len(killed) > len(calm), "some steps were run again"
    assert dict(killed) == dict(calm)
    assert set(killed) == set(calm), "a step that was run twice had two losses"
