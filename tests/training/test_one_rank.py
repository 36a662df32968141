"""A world of one trains through the same code, and a script that forgot the process group gets one line."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import pytest
import torch
from harness import ranks
from networks import OPTIMIZERS, build

from dovetail.errors import BadInput
from dovetail.training import distribute, no_sync, shutdown


def train_alone(rank: int, size: int) -> list[list[float]]:
    """Losses in plain torch and under dovetail."""
    found = []
    for ours in (False, True):
        model = build("cnn", 0)
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        if ours:
            distribute(model, optimizer, update="hub")
            with no_sync(model):
                model(torch.ones(2, 3, 6, 6)).sum().backward()
            optimizer.zero_grad()
            model.load_state_dict(build("cnn", 0).state_dict())
        losses = []
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3, 6, 6) * step).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    shutdown(model)
    return found


def test_world_of_one() -> None:
    with ranks(1, train_alone, gloo=True) as group:
        ((plain, ours),) = group.results(60)
    assert plain == ours


def test_before_init_process_group() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(BadInput, match="init_process_group"):
        distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))


def fail_to_distribute(rank: int, size: int) -> list[str]:
    """The functions in the traceback that a user's mistake gives."""
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    try:
        distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    except BadInput as error:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return []


def test_a_mistake_shows_the_user_s_line_and_nothing_of_ours() -> None:
    with ranks(1, fail_to_distribute, gloo=True) as group:
        assert group.results(60) == [["fail_to_distribute", "distribute"]]


SCRIPT = """
import torch, torch.distributed as dist
from dovetail.training import distribute
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), rate=2e4)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * dist.get_rank()).sum().backward()
    optimizer.step()
print("ok", flush=True)
dist.destroy_process_group()
"""


def test_a_script_under_torchrun_just_ends(tmp_path) -> None:
    """Without a word of goodbye, with a step still on its way: exit code 0 and no complaint on any rank."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=90, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("ok") == 2
    assert "Traceback" not in done.stderr
    assert "PeerLost" not in done.stderr
