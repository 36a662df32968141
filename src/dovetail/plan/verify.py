"""What every plan must satisfy: each byte moves once each way, in a window it can use, and no cycle is added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dovetail.errors import BadInput
from dovetail.trace.graph import Param, Profile

if TYPE_CHECKING:
    from dovetail.plan.schedule import Plan, Transfer


def check_coverage(params: Sequence[Param], transfers: Iterable[Transfer]) -> None:
    """Raise unless every byte is covered once by pushes and once by pulls; a reduce counts as both."""
    sizes = {p.name: p.nbytes for p in params}
    ways: dict[str, dict[str, list[tuple[int, int]]]] = {"push": {}, "pull": {}}
    for transfer in transfers:
        for name, offset, nbytes in transfer.parts:
            if name not in sizes:
                raise BadInput(f"the plan moves the unknown parameter {name!r}")
            if offset < 0 or nbytes < 0 or offset + nbytes > sizes[name]:
                raise BadInput(f"the plan moves bytes {offset}..{offset + nbytes} of {name!r}, which has {sizes[name]}")
            for way in ("push", "pull") if transfer.kind == "reduce" else (transfer.kind,):
                ways[way].setdefault(name, []).append((offset, nbytes))
    for way, parts in ways.items():
        for name, size in sizes.items():
            _check_tiles(name, size, parts.get(name), way)


def _check_tiles(name: str, size: int, tiles: list[tuple[int, int]] | None, way: str) -> None:
    if tiles is None:
        raise BadInput(f"the plan never moves {name!r} ({way})")
    reach = 0
    for offset, nbytes in sorted(tiles):
        if offset != reach:
            what = "twice" if offset < reach else "never"
            raise BadInput(
                f"the plan moves bytes {min(offset, reach)}..{max(offset, reach)} of {name!r} {what} ({way})"
            )
        reach += nbytes
    if reach != size:
        raise BadInput(f"the plan never moves bytes {reach}..{size} of {name!r} ({way})")


def check_dense(plan: Plan) -> None:
    """Raise if only some values of a gradient shall travel: engines sum whole ones."""
    if plan.keep < 1:
        raise BadInput(
            f"the plan lets {plan.keep:.3%} of gradient values travel, but what shall run it sends all; train with "
            "engine='native' and without hubs, or leave the pass 'sparsify' out"
        )


def check_windows(transfers: Sequence[Transfer]) -> None:
    """Raise if values shall come back in the backward pass though their gradients leave only after it."""
    late = _tiles(t for t in transfers if t.kind == "push" and t.window == "forward")
    if not late:
        return
    early = _tiles(t for t in transfers if t.kind == "pull" and t.window == "backward")
    for name in early.keys() & late.keys():
        pushes, pulls = sorted(late[name]), sorted(early[name])
        i = 0
        for start, end in pulls:
            while i < len(pushes) and pushes[i][1] <= start:
                i += 1
            if i < len(pushes) and pushes[i][0] < end:
                raise BadInput(
                    f"the plan pulls {name!r} in the backward pass, but pushes it only after; "
                    "give the pull the window 'forward'"
                )


def _tiles(transfers: Iterable[Transfer]) -> dict[str, list[tuple[int, int]]]:
    tiles: dict[str, list[tuple[int, int]]] = {}
    for transfer in transfers:
        for name, offset, nbytes in transfer.parts:
            if nbytes:
                tiles.setdefault(name, []).append((offset, offset + nbytes))
    return tiles


def check_edges(edges: Iterable[tuple[str, str]]) -> None:
    """Raise if the added op pairs form a cycle among themselves."""
    stuck = _cycle(edges)
    if stuck:
        raise BadInput(f"the plan's edges form a cycle through {', '.join(map(repr, stuck[:4]))}")


def check_fits(plan: Plan, profile: Profile) -> None:
    """Raise unless the plan was made for this model and its edges keep the model's graph acyclic."""
    if {p.name: p.nbytes for p in plan.params} != {p.name: p.nbytes for p in profile.params}:
        missing = sorted({p.name for p in profile.params} ^ {p.name for p in plan.params})
        hint = f" (for one, {missing[0]!r} is in only one of them)" if missing else " (sizes differ)"
        raise BadInput(f"the plan is for another model{hint}; make it anew with `dovetail plan`")
    if not plan.edges:
        return
    unknown = next((name for edge in plan.edges for name in edge if name not in profile.op_index), None)
    if unknown is not None:
        raise BadInput(f"the plan orders the unknown op {unknown!r}; make it anew with `dovetail plan`")
    given = ((name, op.name) for op in profile.ops for name in op.inputs)
    stuck = _cycle((*given, *plan.edges))
    if stuck:
        raise BadInput(f"the plan's edges close a cycle with the model's ops through {', '.join(map(repr, stuck[:4]))}")


def _cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Nodes on or behind a cycle, by name; none if the edges have a topological order."""
    users: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    for before, after in edges:
        users.setdefault(before, []).append(after)
        waiting.setdefault(before, 0)
        waiting[after] = waiting.get(after, 0) + 1
    ready = [name for name, count in waiting.items() if count == 0]
    while ready:
        for user in users.get(ready.pop(), ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    return sorted(name for name, count in waiting.items() if count > 0)
