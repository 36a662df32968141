"""Aggregation patterns as pure functions: nodes in, routes out. A chunk follows one route.

Every pattern is, chunk by chunk, a tree in which sums flow to a root and the result flows back;
patterns differ in the trees and in how many roots share the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.errors import BadInput
from dovetail.plan.steps import ADD, COPY, DELIVER, FETCH, FINISH, GATE, SEND, Program, Route, Step


def tree_route(
    parents: Mapping[int, int | None],
    *,
    contributors: frozenset[int] | set[int],
    back: Mapping[int, int | None] | None = None,
    split: bool = False,
) -> Route:
    """The route along `parents` (the root maps to None); `back` is the way of the result if it differs.

    `contributors` add a gradient and want the result; `split` puts a gate between the two halves.
    """
    down = parents if back is None else back
    return {node: _program(node, parents, down, node in contributors, split) for node in parents}


def _program(
    node: int, up: Mapping[int, int | None], down: Mapping[int, int | None], contributes: bool, split: bool
) -> Program:
    children = tuple(sorted(n for n, parent in up.items() if parent == node))
    receivers = tuple(sorted(n for n, parent in down.items() if parent == node))
    steps: list[Step] = []
    if contributes:
        steps.append(Step(FETCH))
    if children:
        steps.append(Step(ADD, children))
    parent, source = up[node], down[node]
    if parent is not None:
        steps.append(Step(SEND, (parent,)))
    if source is not None:
        steps.append(Step(COPY, (source,)))
    if parent is None:
        steps.append(Step(FINISH))
        if split:
            steps.append(Step(GATE))
    if receivers:
        steps.append(Step(SEND, receivers))
    if contributes:
        steps.append(Step(DELIVER))
    return tuple(steps)


def hub(workers: Sequence[int], hubs: Sequence[int], *, split: bool = False) -> list[Route]:
    """Every worker sends to a hub and gets the result from it; one route a hub."""
    if not hubs:
        raise BadInput("aggregation 'hub' needs a hub; give hubs=[...] or DOVETAIL_HUBS, or use 'shuffle'")
    everyone = frozenset(workers)
    return [tree_route({**dict.fromkeys(workers, h), h: None}, contributors=everyone, split=split) for h in hubs]


def shuffle(workers: Sequence[int], *, split: bool = False) -> list[Route]:
    """Fully sharded colocated servers: each worker is the hub of its share of the chunks."""
    everyone = frozenset(workers)
    return [
        tree_route({w: None if w == root else root for w in workers}, contributors=everyone, split=split)
        for root in workers
    ]
