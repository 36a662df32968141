"""Scripts as users run them, without a harness around: who cannot go on says why and its process ends, in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import free_port

BOUND = 25.0  # seconds; the process group's own limit is a minute
SCRIPT = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import dovetail
from dovetail.c10d import pulse

mode, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
pulse.SILENT = 3.0
dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
rank = dist.get_rank()
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
optimizer = dovetail.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), engine=mode, policy="dear")
for step in range(100000):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    if step == 5:
        open(os.path.join(folder, str(rank)), "w").close()
    if step > 5 and rank == 1:
        time.sleep(1.5)  # it hears of everything last
    if step > 5 and rank == 2 and "sleeps" in sys.argv:
        time.sleep(600)
"""


def run(folder: Path, engine: str, *, seconds: float = 60.0, sign: signal.Signals | None = None) -> list[str]:
    """The last line of each survivor's words; rank 2 gets the signal, or sleeps where there is none."""
    own = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "TORCH_DISTRIBUTED_DEBUG": "OFF"}
    argv = [sys.executable, "-c", SCRIPT, engine, str(folder), str(seconds), *([] if sign else ["sleeps"])]
    started = [
        subprocess.Popen(argv, env={**os.environ, **own, **quiet, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        end = time.monotonic() + 60
        while len(list(folder.iterdir())) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(list(folder.iterdir())) == 3, "not all ranks have come to train"
        if sign is not None:
            started[2].send_signal(sign)
        said = [process.communicate(timeout=BOUND)[1] for process in started[:2]]
        assert all(process.returncode != 0 for process in started[:2])
        return [next(line for line in text.splitlines()[::-1] if "dovetail.errors" in line) for text in said]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_survivors_on_a_process_group_name_who_was_lost_and_end(tmp_path: Path, sign: signal.Signals) -> None:
    """Rank 0 keeps the store and leaves first: that must not be taken for the cause."""
    for line in run(tmp_path, "c10d", sign=sign):
        assert "PeerLost: rank 2 gives no sign of life any more" in line


def test_a_rank_that_does_not_take_part_is_waited_for_as_long_as_the_group_says(tmp_path: Path) -> None:
    first, second = run(tmp_path, "native", seconds=6.0)
    assert "TimedOut: the mean of '" in first
    assert "was not there after 6 s" in first
    assert "PeerLost: rank 0" in second
    assert "was not there after 6 s" in second
