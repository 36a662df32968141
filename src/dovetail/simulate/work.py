"""A profile and a plan as the numbered work the simulator runs: stretches of computation, and chunks that travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.plan.schedule import FORWARD, PULL, PUSH, REDUCE, Plan, Transfer
from dovetail.plan.verify import check_fits
from dovetail.trace.graph import Op, Profile


@dataclass(frozen=True, slots=True)
class Stretch:
    """Ops that run in one go: it waits for parameters only before its first op, gradients appear only at its end."""

    name: str
    time: float
    needs: tuple[int, ...]  # parameters that must have arrived
    makes: tuple[int, ...]  # parameters whose gradients are complete afterwards


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of one parameter that travel together; `nbytes` may be several of the engine's chunks."""

    param: int
    nbytes: int
    push: int  # index into Work.pushes
    pull: int  # index into Work.pulls, or -1 where the result comes back by itself
    priority: int  # of the gradient
    value_priority: int  # of the result


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A push or reduce: ready when `params` gradients are there, and the backward pass is over if `late`."""

    name: str
    params: int
    late: bool
    chunks: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """A pull: goes out when its chunks at an aggregator are updated; `late`: and the backward pass is over."""

    name: str
    late: bool
    chunks: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """All of one iteration."""

    stretches: tuple[Stretch, ...]
    chunks: tuple[Chunk, ...]
    pushes: tuple[Outgoing, ...]
    pulls: tuple[Incoming, ...]
    feeds: tuple[tuple[int, ...], ...]  # per parameter, the pushes that carry its gradient
    pieces: tuple[int, ...]  # per parameter, its number of chunks
    unmade: tuple[int, ...]  # parameters whose gradient no op completes; they count as made when backward ends


def compile_work(profile: Profile, plan: Plan, *, quantum: int) -> Work:
    """The plan's bytes cut at every border of a push, a pull or `quantum` bytes; ops in the order the edges leave."""
    check_fits(plan, profile)
    index = profile.param_index
    outgoing = [t for t in plan.transfers if t.kind != PULL]
    incoming = [t for t in plan.transfers if t.kind != PUSH]
    pull_number = {i: n for n, i in enumerate(i for i, t in enumerate(incoming) if t.kind == PULL)}
    chunks: list[Chunk] = []
    push_chunks: list[list[int]] = [[] for _ in outgoing]
    pull_chunks: list[list[int]] = [[] for _ in pull_number]
    sent, wanted = _tiles(outgoing), _tiles(incoming)
    for push, transfer in enumerate(outgoing):
        # Where many chunks are simulated at a time, depth makes no smaller ones.
        step = transfer.chunk_bytes(quantum) if quantum <= plan.chunk_bytes else quantum
        for name, offset, nbytes in transfer.parts:
            for start, end, source in _overlaps(wanted[name], offset, offset + nbytes):
                pull = pull_number.get(source, -1)
                for size in _cut(end - start, step):
                    number = len(chunks)
                    push_chunks[push].append(number)
                    if pull >= 0:
                        pull_chunks[pull].append(number)
                    value = incoming[source].priority
                    chunks.append(Chunk(index[name], size, push, pull, transfer.priority, value))
    pieces = [0] * len(profile.params)
    for chunk in chunks:
        pieces[chunk.param] += 1
    feeds: list[list[int]] = [[] for _ in profile.params]
    for name, tiles in sent.items():
        feeds[index[name]] = sorted({push for _, _, push in tiles})
    made = {op.produces for op in profile.ops if op.produces is not None}
    return Work(
        stretches=_stretches(profile, plan),
        chunks=tuple(chunks),
        pushes=tuple(
            Outgoing(_label(t), len(t.params), t.window == FORWARD, tuple(c), t.nbytes)
            for t, c in zip(outgoing, push_chunks, strict=True)
        ),
        pulls=tuple(
            Incoming(_label(incoming[i]), incoming[i].window == FORWARD, tuple(pull_chunks[n]), incoming[i].nbytes)
            for i, n in pull_number.items()
        ),
        feeds=tuple(tuple(f) for f in feeds),
        pieces=tuple(pieces),
        unmade=tuple(i for i, p in enumerate(profile.params) if p.name not in made),
    )


def quantum_for(plan: Plan, limit: int) -> int:
    """The plan's chunk size, or a multiple of it that keeps an iteration at about `limit` chunks."""
    wanted = sum(-(-t.nbytes // plan.chunk_bytes) for t in plan.transfers if t.kind != PULL)
    return plan.chunk_bytes * max(1, -(-wanted // max(1, limit)))


def _label(transfer: Transfer) -> str:
    names = transfer.params
    verb = {PUSH: "push", PULL: "pull", REDUCE: "reduce"}[transfer.kind]
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{verb} {names[0] if names else ''}{more}"


def _tiles(transfers: Sequence[Transfer]) -> dict[str, list[tuple[int, int, int]]]:
    """Per parameter, (start, end, transfer) in order of start."""
    tiles: dict[str, list[tuple[int, int, int]]] = {}
    for number, transfer in enumerate(transfers):
        for name, offset, nbytes in transfer.parts:
            tiles.setdefault(name, []).append((offset, offset + nbytes, number))
    for found in tiles.values():
        found.sort()
    return tiles


def _overlaps(tiles: list[tuple[int, int, int]], start: int, end: int) -> Iterable[tuple[int, int, int]]:
    low, high = 0, len(tiles)
    while low < high:  # the first tile that ends after `start`
        middle = (low + high) // 2
        low, high = (middle + 1, high) if tiles[middle][1] <= start else (low, middle)
    while low < len(tiles) and tiles[low][0] < end:
        yield max(start, tiles[low][0]), min(end, tiles[low][1]), tiles[low][2]
        low += 1


def _cut(nbytes: int, quantum: int) -> Iterable[int]:
    for start in range(0, nbytes, quantum):
        yield min(quantum, nbytes - start)


def _stretches(profile: Profile, plan: Plan) -> tuple[Stretch, ...]:
    index = profile.param_index
    seen: set[int] = set()
    result: list[Stretch] = []
    run: list[Op] = []
    needs: tuple[int, ...] = ()

    def flush(makes: tuple[int, ...] = ()) -> None:
        nonlocal needs
        if run:
            name = run[0].name if len(run) == 1 else f"{run[0].name} .. {run[-1].name}"
            result.append(Stretch(name, sum(op.time for op in run), needs, makes))
        run.clear()
        needs = ()

    for op in _ordered(profile, plan):
        first = tuple(dict.fromkeys(index[r] for r in op.reads if index[r] not in seen))
        seen.update(first)
        if plan.barrier and not result and not run:
            first = tuple(range(len(profile.params)))
            seen.update(first)
        if first:
            flush()
            needs = first
        run.append(op)
        if op.produces is not None:
            flush((index[op.produces],))
    flush()
    return tuple(result)


def _ordered(profile: Profile, plan: Plan) -> tuple[Op, ...]:
    """The ops in the order they run: the profile's own, changed as little as the plan's edges ask."""
    if not plan.edges:
        return profile.ops
    before: dict[str, list[str]] = {}
    for first, second in plan.edges:
        before.setdefault(second, []).append(first)
    ops = tuple(
        Op(o.name, o.time, tuple(dict.fromkeys((*o.inputs, *before.get(o.name, ())))), o.reads, o.produces)
        for o in profile.ops
    )
    return Profile(ops, profile.params).ops
