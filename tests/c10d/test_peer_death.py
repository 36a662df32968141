"""A rank that dies or falls silent: the others raise within seconds and say which one it was."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from behaviours_training import Net, batch
from harness import ranks, reach
from torch.nn.parallel import DistributedDataParallel

from dovetail.errors import PeerLost

BOUND = 5.0
SILENCE = 4.0  # seconds, the engine's own limit


def start(rank: int) -> None:
    import dovetail.c10d  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("dovetail", timeout=timedelta(minutes=10))
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    reach("going")


def reduce_forever(rank: int, size: int) -> None:
    start(rank)
    data = torch.ones(50_000)
    while True:
        dist.all_reduce(data, op=dist.ReduceOp.AVG)


def futures_forever(rank: int, size: int) -> None:
    start(rank)
    data = torch.ones(50_000)
    while True:
        dist.all_reduce(data, op=dist.ReduceOp.AVG, async_op=True).get_future().wait()


def train_forever(rank: int, size: int) -> None:
    start(rank)
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.01)
    while True:
        model(batch(rank, 0)[0]).sum().backward()


def gather_forever(rank: int, size: int) -> None:
    start(rank)
    while True:
        dist.all_gather_into_tensor(torch.zeros(size * 9), torch.ones(9))


def barrier_forever(rank: int, size: int) -> None:
    start(rank)
    while True:
        dist.barrier()


def compute_then_reduce(rank: int, size: int) -> None:
    start(rank)
    if rank == 0:
        signal.pause()
    dist.all_reduce(torch.ones(9))  # rank 0 dies long before it comes here


LOOPS = (reduce_forever, futures_forever, train_forever, gather_forever, barrier_forever, compute_then_reduce)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_survivors_name_a_killed_rank(loop: Callable[..., Any]) -> None:
    with ranks(3, loop) as group:
        group.wait_for("going", within=60)
        group.kill(0)
        errors = group.errors(within=BOUND)
        # Through a future or through DDP, torch makes a RuntimeError of it and keeps the words.
        assert set(errors) == {1, 2}
        assert all(issubclass(kind, PeerLost | RuntimeError) for kind in errors.values()), errors
        assert all("rank 0 at " in text for text in group.messages().values()), group.messages()


@pytest.mark.parametrize("loop", [train_forever, barrier_forever], ids=lambda loop: loop.__name__)
def test_survivors_name_a_rank_that_fell_silent(loop: Callable[..., Any]) -> None:
    with ranks(2, loop) as group:
        group.wait_for("going", within=60)
        group.kill(1, signal.SIGSTOP)
        assert set(group.errors(within=SILENCE + BOUND)) == {0}
        assert "rank 1 at " in group.messages()[0]
        assert "silent" in group.messages()[0]
