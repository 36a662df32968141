"""Priorities proven live: two ranks in this process, one slow link, and an urgent message behind a large one."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

from dovetail.doctor.check import BROKEN, GOOD, Check
from dovetail.engine.session import Options, Session
from dovetail.engine.table import TensorSpec
from dovetail.errors import DovetailError
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.trace.graph import Param
from dovetail.units import format_seconds

RATE = 25e6  # bytes per second that either rank may send
BULK, SMALL = 3_000_000, 4096  # bytes
CHUNK = 32 * 1024
LEAD = 0.02  # seconds by which the large message is ahead
ROUNDS = 3
PATIENCE = 20.0
CLEARLY = 2.0  # times sooner than first in, first out


class Board(dict[str, bytes]):
    """A store for ranks in one process."""

    def set(self, key: str, value: bytes | str) -> None:
        self[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def add(self, key: str, amount: int) -> int:
        value = int(self.get(key)) + amount if key in self else amount  # each rank adds to a key of its own
        self.set(key, str(value))
        return value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def priorities() -> Check:
    """How soon 4 KiB arrive behind 3 MB, with priorities and without."""
    by_priority, in_order = measure(0), measure(1)
    live = CLEARLY * by_priority < in_order
    found = (
        f"4 KiB behind 3 MB arrive after {format_seconds(by_priority)}; without priorities {format_seconds(in_order)}"
    )
    return Check(
        name="priorities",
        state=GOOD if live else BROKEN,
        found=found,
        advice="" if live else "urgent data does not overtake here; try again on an idle machine, then report it",
        figures={"urgent_s": by_priority, "in_order_s": in_order},
    )


def measure(priority: int) -> float:
    """Median seconds until a small tensor of this priority is at the peer behind a large one of priority 1."""
    sizes = {"bulk": (BULK, 1), "small": (SMALL, priority)}
    plan = Plan(
        policy="doctor",
        params=tuple(Param(name, nbytes) for name, (nbytes, _) in sizes.items()),
        transfers=tuple(Transfer(REDUCE, ((name, 0, nbytes),), order) for name, (nbytes, order) in sizes.items()),
        aggregation="shuffle",
        chunk_bytes=CHUNK,
    )
    board, barrier = Board(), threading.Barrier(2, timeout=PATIENCE)
    instants: list[list[float]] = [[], []]

    def rank(number: int) -> None:
        memory = [np.ones(nbytes // 4, dtype=np.float32) for nbytes, _ in sizes.values()]
        with Session.open(
            store=board,
            rank=number,
            world=2,
            plan=plan,
            tensors=[TensorSpec(name, nbytes) for name, (nbytes, _) in sizes.items()],
            options=Options(rate=RATE, patience=PATIENCE, facing="localhost"),
            namespace=f"doctor-{priority}",
        ) as session:
            for iteration in range(1, ROUNDS + 1):
                instants[number].append(_round(session, iteration, memory, barrier))
            barrier.wait()

    _together(rank)
    sent, arrived = instants
    return statistics.median(there - here for here, there in zip(sent, arrived, strict=True))


def _round(session: Session, iteration: int, memory: list[np.ndarray], barrier: threading.Barrier) -> float:
    """Rank 0 says when it handed over the small tensor, rank 1 when the sum was there."""
    session.begin(iteration)
    session.release(iteration)
    if session.rank == 1:
        session.submit(1, iteration, memory[1].ctypes.data)
    barrier.wait()
    session.submit(0, iteration, memory[0].ctypes.data)
    time.sleep(LEAD)
    instant = time.monotonic()
    if session.rank == 0:
        session.submit(1, iteration, memory[1].ctypes.data)
    session.backward_done(iteration)
    arrived = session.wait([1], iteration, timeout=PATIENCE)
    if session.rank == 1:
        instant = time.monotonic()
    if not arrived or not session.wait([0], iteration, timeout=PATIENCE):
        raise DovetailError(f"two ranks on loopback did not sum {BULK} bytes within {PATIENCE:.0f} s")
    return instant


def _together(body: Callable[[int], None]) -> None:
    """Run `body(rank)` of both ranks as threads; raises what the first of them raised."""
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            body(rank)
        except (DovetailError, threading.BrokenBarrierError) as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = sorted(errors, key=lambda error: not isinstance(error, DovetailError))
    if told:
        raise DovetailError(str(told[0]) or "two ranks on loopback did not meet")
