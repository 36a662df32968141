"""A rank that dies or falls silent: the others raise within seconds and say which one it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from behaviours_training import Net, batch
from harness import ranks, reach
from torch.nn.parallel import DistributedDataParallel

BOUND = 5.0  # seconds from a death to the error
SILENCE = 4.0  # seconds after which the engine takes silence for death


def start(backend: str = "dovetail", **settings: Any) -> DistributedDataParallel:
    import dovetail.c10d  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(minutes=10))
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.01, **settings)
    for _ in range(2):  # the second forward pass exchanges the order of the buckets
        model(batch(0, 0)[0]).sum().backward()
    dist.barrier()
    reach("going")
    return model


def train_forever(rank: int, size: int) -> None:
    model = start()
    while True:
        model(batch(rank, 0)[0]).sum().backward()


def outlive(rank: int, size: int, first: str) -> dict[str, tuple[str, float]]:
    """Rank 0 is lost in the middle of `first`; every call after that must fail as well, and at once."""
    model = start()
    if rank == 0:
        signal.pause()
    data = torch.ones(5000)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(data),
        "future": lambda: dist.all_reduce(data, async_op=True).get_future().wait(),
        "crowd": lambda: [work.wait() for work in [dist.all_reduce(data, async_op=True) for _ in range(9)]],
        "backward": lambda: model(batch(rank, 0)[0]).sum().backward(),
        "gather": lambda: dist.all_gather_into_tensor(torch.zeros(size * 9), torch.ones(9)),
        "barrier": dist.barrier,
        "receive": lambda: dist.recv(data, 0),
    }
    said: dict[str, tuple[str, float]] = {}
    for name in (first, *(name for name in calls if name != first)):
        begun = time.monotonic()
        try:
            calls[name]()
        except (ConnectionError, RuntimeError) as error:
            said[name] = (str(error), time.monotonic() - begun)
        else:
            said[name] = ("nothing", time.monotonic() - begun)
    return said


def test_survivors_of_a_kill_in_the_middle_of_training_name_the_rank() -> None:
    with ranks(4, train_forever) as group:  # so many that rank 2 has no connection to rank 0
        group.wait_for("going", within=60)
        group.kill(0)
        assert set(group.errors(within=BOUND)) == {1, 2, 3}
        assert all("rank 0 at " in text for text in group.messages().values()), group.messages()


@pytest.mark.parametrize(
    ("sign", "first", "limit"),
    [
        (signal.SIGKILL, "future", BOUND),
        (signal.SIGKILL, "crowd", BOUND),  # more than the engine has room for
        (signal.SIGKILL, "receive", BOUND),
        (signal.SIGSTOP, "barrier", SILENCE + BOUND),
        (signal.SIGSTOP, "receive", SILENCE + BOUND),
    ],
)
def test_every_call_of_a_survivor_fails_and_names_the_rank(sign: signal.Signals, first: str, limit: float) -> None:
    with ranks(2, outlive, args=(first,)) as group:
        group.wait_for("going", within=60)
        time.sleep(0.3)  # so that the survivor waits inside the first call
        begun = time.monotonic()
        group.kill(0, sign)
        said = group.results(30)[1]
        assert time.monotonic() - begun < limit + BOUND
        assert all("rank 0 at " in text for text, _ in said.values()), said
        assert said.pop(first)[1] < limit
        assert all(seconds < 2.0 for _, seconds in said.values()), said


def survive(rank: int, size: int, backend: str, name: str) -> tuple[str, float]:
    """What a call says in whose middle rank 0 is killed, and when."""
    model = start(backend, broadcast_buffers=False)
    if rank == 0:
        signal.pause()
    loss, data = model(batch(rank, 0)[0]).sum(), torch.ones(5000)
    calls: dict[str, Callable[[], Any]] = {"all_reduce": lambda: dist.all_reduce(data), "backward": loss.backward}
    reach("inside")
    try:
        calls[name]()
    except RuntimeError as error:
        return str(error), time.time()
    return "nothing", time.time()


@pytest.mark.parametrize("name", ["all_reduce", "backward"])
@pytest.mark.parametrize("backend", ["gloo", "dovetail"])
def test_survivors_hear_of_a_death_on_either_backend(backend: str, name: str) -> None:
    with ranks(3, survive, args=(backend, name)) as group:
        group.wait_for("inside", ranks=2, within=60)
        time.sleep(0.3)  # so that both wait
        killed = time.time()
        group.kill(0)
        for said, heard in group.results(BOUND + 5)[1:]:
            assert said != "nothing"
            assert killed < heard < killed + BOUND, said
            assert backend == "gloo" or "rank 0 at " in said, said
