"""How long an iteration takes on a process group: its collectives form one line, in the order that all ranks issue."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from dovetail.c10d.sequence import GATHER, REDUCE, SCATTER, Call, Seen, Work, timed, work_of
from dovetail.network.model import Cluster, Link
from dovetail.plan.eager import eager
from dovetail.plan.schedule import PULL, PUSH, Plan
from dovetail.plan.schedule import REDUCE as REDUCED
from dovetail.trace.graph import Profile

DEPTH = 2  # collectives that may be under way at once: enough to keep the line full, and few to wait behind
GAIN = 0.98  # two halves must take less than this share of the time that one all-reduce takes: they cost more calls
ROUNDS = 4  # iterations until one is like the next


@dataclass(frozen=True, slots=True)
class Line:
    """What a group's collectives cost: seconds at least, and bytes per second of a reduce-scatter or an all-gather."""

    startup: float
    rate: float

    def time(self, call: Call, work: Work) -> float:
        """Seconds in which the call occupies the line; an all-reduce is both halves.

        With two under way, one's startup passes while the other's bytes travel: the longer of the two counts.
        """
        size = sum(work.loads[i].nbytes for i in call.loads)
        return max(self.startup, size * (2 if call.kind == REDUCE else 1) / self.rate)


def as_cluster(line: Line, workers: int) -> Cluster:
    """A cluster on which planners weigh startups and bytes as this line does."""
    link = Link(startup=line.startup / 2, bandwidth=line.rate * _share(workers))
    return Cluster.uniform(workers=workers, link=link)


def line_of(cluster: Cluster) -> Line:
    """The line of a group on this cluster; undoes `as_cluster`."""
    link = cluster.slowest
    return Line(startup=2 * link.startup, rate=link.bandwidth / _share(len(cluster.workers)))


def _share(workers: int) -> float:
    """The part of the bytes that a rank's link carries in half an all-reduce."""
    return (max(2, workers) - 1) / max(2, workers)


def iteration_time(profile: Profile, plan: Plan, cluster: Cluster) -> float:
    """Seconds an iteration of the profile takes with the plan's collectives in one line, once that is filled."""
    line = line_of(cluster)
    work = work_of(plan, {param.name: str(param.itemsize) for param in plan.params})
    calls = timed(work, _undisturbed(profile, line.rate))
    arrived: dict[str, float] = {}
    now, free = 0.0, 0.0
    flying: deque[float] = deque([0.0] * DEPTH)
    for _ in range(ROUNDS):
        start = now
        made: dict[str, float] = {}
        if plan.barrier:
            now = max(now, *arrived.values()) if arrived else now
        for number, op in enumerate(profile.ops):
            due = op.reads if number < profile.backward_start else tuple(arrived)
            now = max([now, *(arrived.get(name, 0.0) for name in due)]) + op.time
            if op.produces is not None:
                made[op.produces] = now
        arrived, free = _arrivals(calls, work, line, made, over=now, free=free, flying=flying)
    return now - start


def fitted(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """The plan as it pays on this group: pieces worth their startup, and halves only where they hide something."""
    line = line_of(cluster)
    worth = int(line.startup * line.rate) // 8 * 8  # an all-reduce of this takes twice its startup
    split = replace(eager(plan, profile, cluster), chunk_bytes=max(plan.chunk_bytes, worth))
    whole = _whole(split)
    if whole == split or iteration_time(profile, split, cluster) < GAIN * iteration_time(profile, whole, cluster):
        return split
    return whole


def _whole(plan: Plan) -> Plan:
    """The plan with each push and its pull made one reduce, as urgent as the pull."""
    pulls = {t.parts: t for t in plan.transfers if t.kind == PULL}
    pairs = {t.parts: t for t in plan.transfers if t.kind == PUSH and t.parts in pulls}
    reduces = [replace(push, kind=REDUCED, priority=pulls[parts].priority) for parts, push in pairs.items()]
    return replace(plan, transfers=(*reduces, *(t for t in plan.transfers if t.parts not in pairs)))


def _arrivals(
    calls: tuple[Call, ...],
    work: Work,
    line: Line,
    made: dict[str, float],
    *,
    over: float,
    free: float,
    flying: deque[float],
) -> tuple[dict[str, float], float]:
    """When each parameter's mean is there, and when the line is free again."""
    arrived: dict[str, float] = {}
    summed: dict[int, float] = {}
    issued = 0.0
    for call in calls:
        names = [name for i in call.loads for name in work.loads[i].params]
        ready = [summed[i] for i in call.loads] if call.kind == GATHER else [made.get(name, over) for name in names]
        issued = max([issued, flying.popleft(), over if call.late else 0.0, *ready])
        free = max(free, issued) + line.time(call, work)
        flying.append(free)
        if call.kind == SCATTER:
            summed.update(dict.fromkeys(call.loads, free))
        else:
            for name in names:
                arrived[name] = max(arrived.get(name, 0.0), free)
    return arrived, free


def _undisturbed(profile: Profile, rate: float) -> Seen:
    """When gradients are made if nothing is waited for."""
    now, made = 0.0, {param.name: 0.0 for param in profile.params}
    for op in profile.ops[profile.backward_start :]:
        now += op.time
        if op.produces is not None:
            made[op.produces] = now
    return Seen(made=made, over=now, rate=rate)
