"""What every plan must satisfy: each byte moves exactly once each way, and no cycle is added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dovetail.errors import BadInput
from dovetail.trace.graph import Op, Param, Profile

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


def check_edges(edges: Iterable[tuple[str, str]]) -> None:
    """Raise if the added op pairs form a cycle among themselves."""
    successors: dict[str, tuple[str, ...]] = {}
    for before, after in edges:
        successors[before] = (*successors.get(before, ()), after)
    Profile(
        ops=tuple(
            Op(name, 0.0, inputs=tuple(sorted({b for b, afters in successors.items() if name in afters})))
            for name in sorted(set(successors) | {a for afters in successors.values() for a in afters})
        ),
        params=(),
    )


def check_fits(plan: Plan, profile: Profile) -> None:
    """Raise unless the plan was made for this model and its edges keep the model's graph acyclic."""
    if {p.name: p.nbytes for p in plan.params} != {p.name: p.nbytes for p in profile.params}:
        missing = sorted({p.name for p in profile.params} ^ {p.name for p in plan.params})
        hint = f" (for one, {missing[0]!r} is in only one of them)" if missing else " (sizes differ)"
        raise BadInput(f"the plan is for another model{hint}; make it anew with `dovetail plan`")
    extra: dict[str, list[str]] = {}
    for before, after in plan.edges:
        extra.setdefault(after, []).append(before)
    Profile(
        ops=tuple(Op(o.name, o.time, tuple(dict.fromkeys((*o.inputs, *extra.get(o.name, ()))))) for o in profile.ops),
        params=(),
    )
