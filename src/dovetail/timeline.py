"""What happened in a run, measured or simulated: spans per node, and the figures they give."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

COMPUTE = "compute"
UPDATE = "update"  # optimizer work
SEND = "send"
RECEIVE = "receive"
WAIT = "wait"  # the compute stream stands still because a parameter is not there yet
AFTER = "after backward"  # name of computing between the last gradient and the step
DECIDE = "decide"  # the schedule changes; the span's name says what and why
LANES = (COMPUTE, UPDATE, WAIT, SEND, RECEIVE, DECIDE)

LEAST_SHARE = 0.05  # of an iteration; below it there is nothing to overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing a node did from `start` to `end` (seconds since the run's own zero)."""

    node: str  # "worker 0", "hub 1"
    lane: str  # one of LANES
    name: str  # op, parameter or transfer
    start: float
    end: float
    iteration: int
    nbytes: int = 0
    peer: str = ""
    priority: int | None = None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Spans of whole iterations; `boundaries[node]` are the instants its iterations begin, and the end of the last."""

    source: str  # "engine", "simulator", "ddp"
    policy: str
    spans: tuple[Span, ...]
    boundaries: dict[str, tuple[float, ...]]
    notes: tuple[str, ...] = ()

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """The nodes that compute, in natural order."""
        return tuple(sorted(self.boundaries, key=_natural))

    @cached_property
    def iteration_times(self) -> tuple[float, ...]:
        """Per iteration, the time of the slowest worker."""
        counts = [len(b) - 1 for b in self.boundaries.values()]
        return tuple(max(b[i + 1] - b[i] for b in self.boundaries.values()) for i in range(min(counts, default=0)))

    @cached_property
    def iteration_time(self) -> float:
        """T: the median iteration of the slowest worker."""
        return statistics.median(self.iteration_times) if self.iteration_times else 0.0

    @cached_property
    def compute_time(self) -> float:
        """C: seconds an average worker computes and updates per iteration."""
        return self._busy((COMPUTE, UPDATE))

    @cached_property
    def communication_time(self) -> float:
        """N: seconds an average worker's link is in use (either direction) per iteration."""
        return self._busy((SEND, RECEIVE))

    @property
    def rho(self) -> float:
        """N / C."""
        return self.communication_time / self.compute_time if self.compute_time else float("inf")

    @property
    def alpha(self) -> float:
        """Overlap achieved: (N + C - T) / min(N, C); 1 = all that could be hidden was."""
        smaller = min(self.communication_time, self.compute_time)
        if smaller == 0:
            return 0.0
        return (self.communication_time + self.compute_time - self.iteration_time) / smaller

    @property
    def utilization(self) -> float:
        """U: the share of an iteration in which an average worker computes."""
        return self.compute_time / self.iteration_time if self.iteration_time else 0.0

    @cached_property
    def straggler(self) -> float:
        """The largest share of an iteration that any worker spends waiting."""
        if not self.iteration_time:
            return 0.0
        per_worker = (self._busy_of(worker, (WAIT,)) for worker in self.workers)
        return max(per_worker, default=0.0) / self.iteration_time

    @cached_property
    def link_use(self) -> dict[str, float]:
        """Per node and direction (`worker 0 send`), the share of the run in which it was in use."""
        ends = [b[-1] for b in self.boundaries.values()]
        starts = [b[0] for b in self.boundaries.values()]
        length = max(ends, default=0.0) - min(starts, default=0.0)
        nodes = sorted({s.node for s in self.spans}, key=_natural)
        return {
            f"{node} {lane}": covered(s for s in self.spans if s.node == node and s.lane == lane) / length
            for node in nodes
            for lane in (SEND, RECEIVE)
            if length
        }

    def _busy_of(self, worker: str, lanes: tuple[str, ...]) -> float:
        bounds = self.boundaries[worker]
        first, last, count = bounds[0], bounds[-1], max(1, len(bounds) - 1)
        mine = (s for s in self.spans if s.node == worker and s.lane in lanes)
        return covered(mine, first=first, last=last) / count

    def _busy(self, lanes: tuple[str, ...]) -> float:
        return statistics.fmean(self._busy_of(w, lanes) for w in self.workers) if self.workers else 0.0


def covered(spans: Iterable[Span], *, first: float = float("-inf"), last: float = float("inf")) -> float:
    """Length of the union of the spans, clipped to [first, last]."""
    total, reach = 0.0, first
    for span in sorted(spans, key=lambda s: s.start):
        start, end = max(span.start, reach), min(span.end, last)
        if end > start:
            total += end - start
            reach = end
    return total


def format_overlap(communication: float, compute: float, iteration: float) -> str:
    """Alpha as people read it: the share of the shorter of the two that is hidden, `-` where that is hardly there.

    Where startups rule, links and computation stand still at once, and alpha itself is below 0: nothing is hidden.
    """
    shorter = min(communication, compute)
    if shorter <= LEAST_SHARE * iteration:
        return "-"
    return f"{max(0.0, (communication + compute - iteration) / shorter):.2f}"


def _natural(node: str) -> tuple[str, int]:
    kind, _, number = node.rpartition(" ")
    return (kind, int(number)) if number.isdigit() else (node, 0)
