"""The figures of a timeline, ready to be printed or drawn."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.timeline import AFTER, COMPUTE, DECIDE, RECEIVE, SEND, UPDATE, WAIT, Span, Timeline, covered


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What an average worker moves per iteration in one direction at one priority."""

    direction: str  # SEND or RECEIVE
    priority: int | None  # None = sent without one
    nbytes: float
    transfers: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of one timeline; times are seconds per iteration, bytes are per worker and iteration."""

    name: str
    source: str
    policy: str
    workers: int
    iterations: int
    iteration_time: float
    iteration_min: float
    iteration_max: float
    compute_time: float
    communication_time: float
    exposed: float  # communication while the worker neither computes nor updates
    waiting: float  # the compute stream stands still
    alpha: float
    rho: float | None  # None = the run computes nothing
    utilization: float
    straggler: float
    sent: float
    received: float
    traffic: tuple[Traffic, ...]
    lateness: dict[str, float]  # worker -> how long after the first worker its gradients are ready, on average
    link_use: dict[str, float]
    notes: tuple[str, ...]


def summarize(timeline: Timeline, *, name: str = "") -> Summary:
    """All figures of `timeline`; `name` is what tables call it (its policy when empty)."""
    times = timeline.iteration_times
    workers = timeline.workers
    by_worker: dict[str, list[Span]] = {worker: [] for worker in workers}
    for span in timeline.spans:
        if span.node in by_worker:
            by_worker[span.node].append(span)
    traffic = _traffic(timeline, by_worker)
    return Summary(
        name=name or timeline.policy or timeline.source,
        source=timeline.source,
        policy=timeline.policy,
        workers=len(workers),
        iterations=len(times),
        iteration_time=timeline.iteration_time,
        iteration_min=min(times, default=0.0),
        iteration_max=max(times, default=0.0),
        compute_time=timeline.compute_time,
        communication_time=timeline.communication_time,
        exposed=_mean(_exposed(spans, timeline.boundaries[worker]) for worker, spans in by_worker.items()),
        waiting=_mean(_per_iteration(spans, (WAIT,), timeline.boundaries[w]) for w, spans in by_worker.items()),
        alpha=timeline.alpha,
        rho=timeline.rho if timeline.compute_time else None,
        utilization=timeline.utilization,
        straggler=timeline.straggler,
        sent=sum(t.nbytes for t in traffic if t.direction == SEND),
        received=sum(t.nbytes for t in traffic if t.direction == RECEIVE),
        traffic=traffic,
        lateness=_lateness(by_worker),
        link_use=timeline.link_use,
        notes=(*timeline.notes, *decisions(timeline)),
    )


def decisions(timeline: Timeline) -> list[str]:
    """What was decided while the run went on; all ranks decide the same, so the first one's words will do."""
    made = [span for span in timeline.spans if span.lane == DECIDE]
    first = min((span.node for span in made), default="")
    return [f"iteration {span.iteration}: {span.name}" for span in made if span.node == first]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return statistics.fmean(listed) if listed else 0.0


def _per_iteration(spans: list[Span], lanes: tuple[str, ...], bounds: tuple[float, ...]) -> float:
    if len(bounds) < 2:
        return 0.0
    chosen = (s for s in spans if s.lane in lanes)
    return covered(chosen, first=bounds[0], last=bounds[-1]) / (len(bounds) - 1)


def _exposed(spans: list[Span], bounds: tuple[float, ...]) -> float:
    """Time with the link in use that computation does not cover: |A or B| - |B|."""
    busy = _per_iteration(spans, (COMPUTE, UPDATE), bounds)
    return _per_iteration(spans, (COMPUTE, UPDATE, SEND, RECEIVE), bounds) - busy


def _traffic(timeline: Timeline, by_worker: dict[str, list[Span]]) -> tuple[Traffic, ...]:
    moved: defaultdict[tuple[str, int | None], list[int]] = defaultdict(lambda: [0, 0])
    for spans in by_worker.values():
        for span in spans:
            if span.lane in (SEND, RECEIVE):
                entry = moved[span.lane, span.priority]
                entry[0] += span.nbytes
                entry[1] += 1
    shares = max(1, len(timeline.iteration_times)) * max(1, len(by_worker))
    # Most urgent first, unprioritised traffic last; sends before receives.
    keys = sorted(moved, key=lambda k: (k[0] != SEND, k[1] is None, k[1] if k[1] is not None else 0))
    return tuple(
        Traffic(direction=lane, priority=priority, nbytes=moved[key][0] / shares, transfers=moved[key][1] / shares)
        for key in keys
        for lane, priority in (key,)
    )


def _lateness(by_worker: dict[str, list[Span]]) -> dict[str, float]:
    ends: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for worker, spans in by_worker.items():
        for span in spans:
            if span.lane == COMPUTE and span.name != AFTER:  # it may follow a wait for the others
                ends[span.iteration][worker] = max(span.end, ends[span.iteration].get(worker, span.end))
    whole = [e for e in ends.values() if len(e) == len(by_worker)]
    return {worker: _mean(e[worker] - min(e.values()) for e in whole) for worker in by_worker if whole}
