"""A plan as a sequence of collectives that every rank issues in the same order, whatever arrives first.

A process group matches collectives by the order in which they are issued, so the order may depend only on what all
ranks know: the plan, and what rank 0 saw in the first iteration. A collective under way cannot be overtaken, so
urgency counts when the order is made: it is that of a line which takes the most urgent of what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.plan.schedule import FORWARD, PULL, PUSH, Part, Plan, Transfer
from dovetail.plan.schedule import REDUCE as REDUCED

PIECES = 32  # of a model: what is under way holds up what is more urgent, but every collective costs startups
LEAST, MOST = 512 << 10, 2 << 20  # bytes of a piece: below, startups rule; above, packing and summing leave gaps
MOST_PIECES = 256  # of a model so large that pieces of that size would be more
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What rank 0 saw in an iteration: when each gradient was made, when the backward pass was over, and the speed."""

    made: Mapping[str, float]  # seconds
    over: float  # seconds
    rate: float  # bytes per second of a reduce-scatter or an all-gather; an all-reduce is both


@dataclass(frozen=True, slots=True)
class Work:
    """What a plan asks of a process group, before it is put in order."""

    loads: tuple[Load, ...]
    gathers: tuple[Call, ...]


def piece_bytes(model: int) -> int:
    """What one collective moves at most, of a model of so many bytes; slices are put together up to this."""
    return max(LEAST, min(MOST, model // PIECES), model // MOST_PIECES) // 8 * 8


def work_of(plan: Plan, dtypes: Mapping[str, str]) -> Work:
    """The plan's buffers and all-gathers; a push whose bytes several pulls share is an all-reduce instead."""
    most = max(piece_bytes(plan.nbytes), plan.chunk_bytes)
    transfers = (*_coarse(plan, most), *(t for t in plan.transfers if t.kind != REDUCED))
    pulls = [t for t in transfers if t.kind == PULL]
    pushed: dict[str, list[Part]] = {}
    for part in (part for t in plan.transfers if t.kind == PUSH for part in t.parts):
        pushed.setdefault(part[0], []).append(part)
    pull_of = {part: i for i, pull in enumerate(pulls) for part in _inside(pull, pushed)}
    loads: list[Load] = []
    gathered: list[list[int]] = [[] for _ in pulls]
    for transfer in transfers:
        if transfer.kind == PULL:
            continue
        for dtype, parts in _by_type(transfer, dtypes).items():
            homes = {pull_of.get(part) for part in parts} if transfer.kind == PUSH else {None}
            home = homes.pop() if len(homes) == 1 else None
            for piece in _cut(parts, most):
                if home is not None:
                    gathered[home].append(len(loads))
                loads.append(
                    Load(
                        parts=piece,
                        dtype=dtype,
                        priority=transfer.priority,
                        late=transfer.window == FORWARD,
                        split=home is not None,
                    )
                )
    gathers: list[Call] = []
    for pull, mine in zip(pulls, gathered, strict=True):
        for dtype in dict.fromkeys(loads[i].dtype for i in mine):
            for same in _packed([i for i in mine if loads[i].dtype == dtype], loads, most):
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


def timed(work: Work, seen: Seen) -> tuple[Call, ...]:
    """The order of issue for what rank 0 has seen: whenever the line is free, the most urgent of what is there."""
    ready = {
        i: max(seen.over if load.late else 0.0, *(seen.made[name] for name in load.params))
        for i, load in enumerate(work.loads)
    }
    starts = {_start(work.loads[i], i): instant for i, instant in ready.items()}
    gathers = list(work.gathers)
    done: dict[int, float] = {}  # scattered loads -> when
    behind: set[int] = set()  # loads whose turn comes when the backward pass is over
    calls: list[Call] = []
    now = 0.0
    while starts or gathers:
        known = {g: max(seen.over if g.late else 0.0, *(done[i] for i in g.loads)) for g in gathers if _in(done, g)}
        waiting = starts | known
        now = max(now, min(waiting.values()))
        # What belongs to the backward pass never waits for its end, whatever the clock says: it would wait for itself.
        early = any(not call.late for call in waiting)
        call = min(
            (c for c, instant in waiting.items() if instant <= now and not (c.late and early)),
            key=lambda c: (c.priority, c.kind == GATHER, c.loads),
            default=None,
        ) or min((c for c in waiting if not (c.late and early)), key=lambda c: (waiting[c], c.priority, c.loads))
        now = max(now, waiting[call])
        if call.kind == SCATTER and now >= seen.over:
            behind.update(call.loads)
        size = sum(work.loads[i].nbytes for i in call.loads)
        now += size * (2 if call.kind == REDUCE else 1) / seen.rate
        if call.kind == GATHER:
            gathers.remove(call)
        else:
            del starts[call]
        if call.kind == SCATTER:
            done.update(dict.fromkeys(call.loads, now))
        calls.append(call)
    return tuple(_fused(calls, behind))


def _fused(calls: Sequence[Call], behind: set[int]) -> Iterator[Call]:
    """The calls with halves of which none is under the backward pass made one all-reduce, in the gather's place.

    From there on the line never stands still, so that the result is there when it would have been, for half the calls.
    """
    whole = {i for call in calls if call.kind == GATHER and behind.issuperset(call.loads) for i in call.loads}
    for call in calls:
        if whole.isdisjoint(call.loads):
            yield call
        elif call.kind == GATHER:
            yield from (Call(kind=REDUCE, loads=(i,), late=call.late, priority=call.priority) for i in call.loads)


def _in(done: Mapping[int, float], gather: Call) -> bool:
    return all(i in done for i in gather.loads)


def _coarse(plan: Plan, most: int) -> list[Transfer]:
    """The plan's reduces with small neighbours in urgency put together."""
    found: list[Transfer] = []
    for transfer in sorted((t for t in plan.transfers if t.kind == REDUCED), key=lambda t: t.priority):
        last = found[-1] if found else None
        if last is not None and last.window == transfer.window and last.nbytes + transfer.nbytes <= most:
            found[-1] = replace(last, parts=_joined((*last.parts, *transfer.parts)))
        else:
            found.append(transfer)
    return found


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    found: list[Part] = []
    for name, offset, nbytes in parts:
        if found and found[-1][0] == name and found[-1][1] + found[-1][2] == offset:
            found[-1] = (name, found[-1][1], found[-1][2] + nbytes)
        else:
            found.append((name, offset, nbytes))
    return tuple(found)


def _cut(parts: Sequence[Part], most: int) -> Iterator[tuple[Part, ...]]:
    """The parts in pieces of at most so many bytes, elements whole."""
    held: list[Part] = []
    room = most
    for name, offset, nbytes in parts:
        start = 0
        while start < nbytes:
            size = min(room, nbytes - start)
            held.append((name, offset + start, size))
            start += size
            room -= size
            if not room:
                yield tuple(held)
                held, room = [], most
    if held:
        yield tuple(held)


def _packed(numbers: Sequence[int], loads: Sequence[Load], most: int) -> Iterator[tuple[int, ...]]:
    """Loads that are gathered together: as many as have room in one collective."""
    held: list[int] = []
    for number in numbers:
        if held and sum(loads[i].nbytes for i in (*held, number)) > most:
            yield tuple(held)
            held = []
        held.append(number)
    if held:
        yield tuple(held)


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
