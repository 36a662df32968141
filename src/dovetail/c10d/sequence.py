"""A plan as a sequence of collectives that every rank issues in the same order, whatever arrives first.

A process group matches collectives by the order in which they are issued, so the order may depend only on what all
ranks know: the plan, and the order of production that rank 0 has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.plan.schedule import FORWARD, PULL, PUSH, Part, Plan, Transfer

AHEAD = 2  # further collectives between a reduce-scatter and its all-gather, so that the line does not stand still

REDUCE, SCATTER, GATHER = "reduce", "scatter", "gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Parts of one type that are summed together, in one flat buffer."""

    parts: tuple[Part, ...]
    dtype: str
    priority: int
    late: bool  # leaves only when the backward pass is over
    split: bool  # a reduce-scatter and, later, an all-gather; else one all-reduce

    @property
    def params(self) -> tuple[str, ...]:
        """Names of its parameters, each once, in order."""
        return tuple(dict.fromkeys(name for name, _, _ in self.parts))

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, _, nbytes in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective on the flat buffers of some loads; only a gather has more than one."""

    kind: str  # REDUCE, SCATTER or GATHER
    loads: tuple[int, ...]
    late: bool
    priority: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a plan asks of a process group, before it is put in order."""

    loads: tuple[Load, ...]
    gathers: tuple[Call, ...]


def work_of(plan: Plan, dtypes: Mapping[str, str]) -> Work:
    """The plan's buffers and all-gathers; a push whose bytes several pulls share is an all-reduce instead."""
    pulls = [t for t in plan.transfers if t.kind == PULL]
    pushed: dict[str, list[Part]] = {}
    for part in (part for t in plan.transfers if t.kind == PUSH for part in t.parts):
        pushed.setdefault(part[0], []).append(part)
    pull_of = {part: i for i, pull in enumerate(pulls) for part in _inside(pull, pushed)}
    loads: list[Load] = []
    gathered: list[list[int]] = [[] for _ in pulls]
    for transfer in plan.transfers:
        if transfer.kind == PULL:
            continue
        for dtype, parts in _by_type(transfer, dtypes).items():
            homes = {pull_of.get(part) for part in parts} if transfer.kind == PUSH else {None}
            home = homes.pop() if len(homes) == 1 else None
            if home is not None:
                gathered[home].append(len(loads))
            loads.append(
                Load(
                    parts=parts,
                    dtype=dtype,
                    priority=transfer.priority,
                    late=transfer.window == FORWARD,
                    split=home is not None,
                )
            )
    gathers: list[Call] = []
    for pull, mine in zip(pulls, gathered, strict=True):
        for dtype in dict.fromkeys(loads[i].dtype for i in mine):
            same = tuple(i for i in mine if loads[i].dtype == dtype)
            gathers.append(Call(kind=GATHER, loads=same, late=pull.window == FORWARD, priority=pull.priority))
    return Work(tuple(loads), tuple(gathers))


def sequence(work: Work, made: Mapping[str, int]) -> tuple[Call, ...]:
    """The order of issue: in the backward pass as gradients are made, after it by urgency."""
    order = [i for i, load in enumerate(work.loads) if not load.late]
    order.sort(key=lambda i: max(made[name] for name in work.loads[i].params))
    early: list[Call] = [_start(work.loads[i], i) for i in order]
    after: dict[int, list[Call]] = {}
    place = {i: position for position, i in enumerate(order)}
    for gather in (g for g in work.gathers if not g.late):
        last = max(place[i] for i in gather.loads)
        after.setdefault(min(last + AHEAD, len(order) - 1), []).append(gather)
    calls = [call for position, first in enumerate(early) for call in (first, *after.get(position, ()))]

    starts = [_start(load, i) for i, load in enumerate(work.loads) if load.late]
    begun = set(order)
    for call in sorted((*starts, *(g for g in work.gathers if g.late)), key=lambda c: c.priority):
        missing = [_start(work.loads[i], i) for i in call.loads if i not in begun]
        begun.update(call.loads)
        calls += missing
        if call.kind == GATHER:
            calls.append(call)
    return tuple(calls)


def _start(load: Load, number: int) -> Call:
    kind = SCATTER if load.split else REDUCE
    return Call(kind=kind, loads=(number,), late=load.late, priority=load.priority)


def _by_type(transfer: Transfer, dtypes: Mapping[str, str]) -> dict[str, tuple[Part, ...]]:
    found: dict[str, list[Part]] = {}
    for part in transfer.parts:
        if part[2]:
            found.setdefault(dtypes[part[0]], []).append(part)
    return {dtype: tuple(parts) for dtype, parts in found.items()}


def _inside(pull: Transfer, pushed: Mapping[str, Sequence[Part]]) -> list[Part]:
    """The pushed parts that lie whole inside the pull."""
    whole: dict[str, list[tuple[int, int]]] = {}
    for name, offset, nbytes in sorted(pull.parts):
        held = whole.setdefault(name, [])
        if held and held[-1][1] == offset:
            held[-1] = (held[-1][0], offset + nbytes)
        else:
            held.append((offset, offset + nbytes))
    return [
        part
        for name, spans in whole.items()
        for part in pushed.get(name, ())
        if any(start <= part[1] and part[1] + part[2] <= end for start, end in spans)
    ]


def as_made(names: Sequence[str]) -> dict[str, int]:
    """Each name with its place."""
    return {name: place for place, name in enumerate(names)}
