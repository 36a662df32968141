"""One job's figures on one rank: what its engines used, and what the other ranks tell through the store."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dovetail.engine.usage import Usage
from dovetail.errors import BadInput
from dovetail.training.meter import Meter
from dovetail.training.stats import Stats, overlap

PORT = "DOVETAIL_METRICS_PORT"

_reporters: weakref.WeakSet[Reporter] = weakref.WeakSet()
_serving = False  # this process's metrics


class Reporter:
    """Reads the meter; `store` is None in a world of one."""

    def __init__(self, meter: Meter, *, job: str, policy: str, rank: int, world: int, store: Any | None) -> None:
        self._meter = meter
        self._job, self._policy = job, policy
        self._rank, self._world, self._store = rank, world, store
        self._engine: Callable[[], Usage] = Usage
        self._before = Usage()  # of engines that are no more
        self._lock = threading.Lock()  # an engine is not asked while it is closed
        meter.usage = self._usage
        meter.told = self._tell if store is not None else None
        _reporters.add(self)

    def follow(self, usage: Callable[[], Usage]) -> None:
        """Another engine from here on; the one before is asked for the last time."""
        with self._lock:
            self._before += self._engine()
            self._engine = usage

    def stop(self) -> None:
        """The engine goes; the figures stay."""
        self.follow(Usage)
        _reporters.discard(self)

    def stats(self) -> Stats:
        """The figures now."""
        first, last, usage = self._meter.window()
        took, compute, busy, exposed, alpha = overlap(first, last)
        return Stats(
            job=self._job,
            policy=self._policy,
            rank=self._rank,
            world=self._world,
            iterations=last.iterations,
            counted=last.iterations - first.iterations,
            iteration_s=took,
            compute_s=compute,
            communication_s=busy,
            exposed_s=exposed,
            alpha=alpha,
            exposed_total_s=last.waited,
            communication_total_s=last.busy,
            works=self._works(),
            sent=usage.sent,
            replans=self._meter.replans,
        )

    def _usage(self) -> Usage:
        with self._lock:
            return self._before + self._engine()

    def _tell(self, work: float) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone when its owner is; training will notice
            self._store.set(self._key(self._rank), repr(work))  # type: ignore[union-attr]

    def _works(self) -> dict[int, float]:
        """Every rank's work as it told last; our own as it is now."""
        found = {self._rank: self._meter.work()}
        with contextlib.suppress(RuntimeError):
            for rank in range(self._world if self._store is not None else 0):
                if rank != self._rank and self._store.check([self._key(rank)]):  # type: ignore[union-attr]
                    found[rank] = float(self._store.get(self._key(rank)))  # type: ignore[union-attr]
        return {rank: work for rank, work in sorted(found.items()) if work > 0}

    def _key(self, rank: int) -> str:
        return f"dovetail/{self._job}/pace/{rank}"


def serve_if_asked() -> None:
    """Serve /metrics of all jobs of this process when DOVETAIL_METRICS_PORT says so, from the first job on."""
    global _serving
    text = os.environ.get(PORT, "")
    if not text or _serving:
        return
    local = os.environ.get("LOCAL_RANK", "0")
    if not text.isdigit() or not local.isdigit() or not 0 < int(text) + int(local) < 65536:
        raise BadInput(f"{PORT} is {text!r}; give the port of local rank 0, the others take the ports after it")
    from dovetail.engine.metrics import serve_metrics  # only then is prometheus-client loaded
    from dovetail.training.metrics import StatsCollector

    collector = StatsCollector(lambda: [reporter.stats() for reporter in list(_reporters)])
    serve_metrics(collector, host="0.0.0.0", port=int(text) + int(local))
    _serving = True
