"""A peer that is alive but never calls: the group's timeout ends the wait, on Gloo and on dovetail alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from behaviours_training import Net, batch
from harness import ranks
from torch.nn.parallel import DistributedDataParallel

import dovetail
from dovetail.c10d.reducer import Reducer
from dovetail.c10d.works import Call, ReduceWork

LIMIT = 1.0  # seconds
SLACK = 2.0  # on a busy machine


def _callback_that_waits() -> Any:
    """The thread that completes calls is itself the one that waits."""
    stuck = torch.ones(3)
    first = dist.all_reduce(torch.ones(7), async_op=True)  # which the peer does call
    second = dist.all_reduce(stuck, async_op=True)
    return first.get_future().then(lambda _: second.wait()).wait()


def _asking_for_less() -> Any:
    asked = dist.AllreduceOptions()
    asked.timeout = timedelta(seconds=LIMIT)
    return dist.group.WORLD.allreduce([torch.ones(900)], asked).wait()


def outcome(call: Callable[[], Any]) -> tuple[str, float]:
    begun = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return str(error), time.monotonic() - begun
    return "nothing", time.monotonic() - begun


def wait_for_the_stuck(rank: int, size: int, backend: str, name: str) -> list[tuple[str, float]]:
    """Rank 0 has something else to do for a while; what the others' call and one after it say, and after how long."""
    import dovetail.c10d  # noqa: F401

    torch.set_num_threads(1)
    limit = 60.0 if name == "asked" else LIMIT
    dist.init_process_group(backend, timeout=timedelta(seconds=limit))
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.01, broadcast_buffers=False)
    for _ in range(2):  # the second forward pass exchanges the order of the buckets
        model(batch(0, 0)[0]).sum().backward()
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(5000)),
        "backward": lambda: model(batch(rank, 0)[0]).sum().backward(),
        "callback": _callback_that_waits,
        "asked": _asking_for_less,
    }
    dist.all_reduce(torch.ones(5000))
    if rank == 0:
        if name == "callback":
            dist.all_reduce(torch.ones(7))
        time.sleep(LIMIT + SLACK)
        return [outcome(lambda: dist.all_reduce(torch.ones(5000)))]
    return [outcome(calls[name]), outcome(lambda: dist.all_reduce(torch.ones(5000)))]


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("gloo", "all_reduce"),
        ("gloo", "backward"),
        *(("dovetail", name) for name in ("all_reduce", "backward", "callback", "asked")),
    ],
)
def test_a_peer_that_never_calls_is_waited_for_as_long_as_the_group_allows(backend: str, name: str) -> None:
    with ranks(2, wait_for_the_stuck, args=(backend, name)) as group:
        (late,), (waited, after) = group.results(30)
    assert LIMIT * 0.9 < waited[1] < LIMIT + SLACK, waited
    assert after[1] < LIMIT + SLACK, after  # Gloo counts anew
    if backend == "dovetail":
        for said in (waited[0], after[0], late[0]):
            assert f"not done after {LIMIT:g} s" in said, said
        assert "init_process_group a longer timeout" in waited[0]
        assert "an all_reduce of" in waited[0]
        assert "rank 1 at " in late[0]  # the one that gave up
        assert after[1] < 1.0


class Waiting:
    """A piece whose result does not come."""

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(timeout or 0.0)
        return False

    def done(self) -> bool:
        return False


def test_wait_keeps_to_the_callers_own_limit() -> None:
    call = Call([torch.zeros(300)], 1)
    call.give(Waiting())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"an all_reduce of 1\.2 KiB \(float32\) was not done after the 0\.3 s"):
        ReduceWork(call, [], lambda: None).wait(timedelta(seconds=0.3))


class Engine:
    """Takes every call; results come when the test says so, in the order of the calls."""

    def __init__(self) -> None:
        self.arrived = self.issued = 0
        self.reasons: list[str] = []
        self.table = self
        self.hubs = ()

    def fail(self, reason: str, *, error: Exception) -> None:
        self.reasons.append(reason)

    def nudge(self) -> None: ...

    def close(self) -> None: ...

    def news(self, seen: int, *, timeout: float) -> int:
        time.sleep(min(timeout, 0.01))
        return self.arrived

    def try_all_reduce(self, ptr: int, nbytes: int, dtype: str, *, divisor: int) -> Any:
        self.issued += 1
        return Numbered(self, self.issued)


class Numbered:
    def __init__(self, engine: Engine, number: int) -> None:
        self.engine, self.number = engine, number

    def done(self) -> bool:
        return self.engine.arrived >= self.number


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def test_a_line_that_moves_on_is_not_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    now, engine = [0.0], Engine()
    for module in ("reducer", "works"):
        monkeypatch.setattr(f"dovetail.c10d.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("dovetail.c10d.reducer.Collectives", lambda session: session)
    reducer = Reducer(lambda: engine, name="test")  # type: ignore[arg-type,return-value]
    for _ in range(4):
        reducer.submit(Call([torch.zeros(8)], 1, limit=10.0))
    assert eventually(lambda: engine.issued == 4)
    for left in (3, 2, 1):  # the third one is done 18 s after its call
        now[0] += 6
        engine.arrived += 1
        assert eventually(lambda left=left: len(reducer._flying) == left)  # type: ignore[misc]
    now[0] += 9
    assert 0 < reducer.look() <= 1
    assert engine.reasons == []
    now[0] += 2
    assert eventually(lambda: bool(engine.reasons))
    assert engine.reasons[0] == "gave up because an all_reduce of 32 B (float32) was not done after 10 s"
    reducer.close()
    assert not [t for t in threading.enumerate() if t.name == "test"]


def test_what_was_waited_for_too_long_is_an_error_of_torchs_kind() -> None:
    assert issubclass(dovetail.TimedOut, RuntimeError)
    assert issubclass(dovetail.PeerLost, RuntimeError)
