"""Aggregation patterns as pure functions: nodes in, routes out. A chunk follows one route.

Every pattern is, chunk by chunk, a tree in which sums flow to a root and the result flows back;
patterns differ in the trees and in how many roots share the work. With K nodes that contribute, each
tree without dedicated hubs moves 2(K-1) chunks in all, whatever its form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dovetail.errors import BadInput
from dovetail.network.shape import cube, cut, midpoint_parents
from dovetail.plan.partition import in_turn
from dovetail.plan.steps import ADD, ASK, COPY, DELIVER, FETCH, FINISH, GATE, OFFER, SEND, Program, Route, Step, root_of

PATTERNS = ("shuffle", "hub", "ring", "halving-doubling", "tree", "bcube", "two-level", "rack-hubs")
SHARING = ("shuffle", "two-level")  # patterns whose masters can be shared out unevenly
FINE = 8  # routes a worker in two-level with uneven shares: a share is met to 1 / (8 x workers)
Groups = Sequence[Sequence[int]]


def routes(
    aggregation: str,
    *,
    workers: int,
    hubs: int = 0,
    groups: Groups | None = None,
    shares: Sequence[float] | None = None,
    split: bool = False,
    on_request: bool = False,
    base: int = 4,
    exchange: str = "ring",
) -> list[Route]:
    """The routes of the pattern named `aggregation`; workers are nodes 0.., dedicated hubs come after them.

    `groups` are the racks of `two-level` and `rack-hubs`; without them, ranks in order are cut into even groups.
    `shares` say how much of the masters' work each worker gets; shuffle's routes are the same whatever they are, and
    their weights differ (`weights_of`).
    """
    if workers < 1:
        raise BadInput(f"{workers} workers; give 1 or more")
    everyone, servers = range(workers), range(workers, workers + hubs)
    if on_request and aggregation not in ("shuffle", "hub"):
        raise BadInput(f"aggregation {aggregation!r} cannot serve pulls on request; use 'shuffle' or 'hub'")
    if aggregation == "shuffle":
        return shuffle(everyone, split=split, on_request=on_request)
    if aggregation == "hub":
        return hub(everyone, servers, split=split, on_request=on_request)
    if aggregation == "ring":
        return ring(everyone, split=split)
    if aggregation == "halving-doubling":
        return halving_doubling(everyone, split=split)
    if aggregation == "tree":
        return tree(everyone, split=split)
    if aggregation == "bcube":
        return bcube(everyone, base=base, split=split)
    if aggregation == "two-level":
        found = groups if groups is not None else cut(everyone, max(1, round(math.sqrt(workers))))
        check_groups(found, workers)
        if shares is None:
            return two_level(found, split=split)
        local, between = _by_group(found, shares)
        return two_level(found, global_weights=between, local_weights=local, count=FINE * workers, split=split)
    if aggregation == "rack-hubs":
        if hubs < 1:
            raise BadInput("aggregation 'rack-hubs' needs a hub per rack and has none; give hubs, or use 'two-level'")
        found = groups if groups is not None else cut(everyone, hubs)
        check_groups(found, workers)
        return rack_hubs(found, servers, exchange=exchange, split=split)
    raise unknown(aggregation, PATTERNS)


def unknown(aggregation: str, known: Iterable[str]) -> BadInput:
    """The error for a pattern that is none."""
    return BadInput(f"aggregation {aggregation!r} is unknown; it is one of {', '.join(known)}")


def check_shares(aggregation: str, shares: Sequence[float], workers: int) -> None:
    """Raise unless the pattern's masters can be shared out like this."""
    if aggregation not in SHARING:
        raise BadInput(f"shares of masters fit {' and '.join(SHARING)}, not aggregation {aggregation!r}")
    if len(shares) != workers or min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise BadInput(f"shares {list(shares)} do not fit {workers} ranks; give each 0 or more, and not all 0")


def weights_of(found: Sequence[Route], aggregation: str, shares: Sequence[float] | None) -> list[float] | None:
    """How many bytes each of the routes is to carry, in proportion; None = all the same."""
    return None if shares is None or aggregation != "shuffle" else [shares[root_of(route)] for route in found]


def _by_group(groups: Groups, shares: Sequence[float]) -> tuple[dict[int, float], list[float]]:
    """Weights inside the groups and between them; a group whose members want nothing masters its own sums evenly."""
    between = [sum(shares[node] for node in group) for group in groups]
    local = {
        node: shares[node] if total > 0 else 1.0 for group, total in zip(groups, between, strict=True) for node in group
    }
    return local, between


def check_groups(groups: Groups, workers: int) -> None:
    """Raise unless each of the workers 0.. is in exactly one group and no group is empty."""
    members = sorted(node for group in groups for node in group)
    if members != list(range(workers)) or not all(groups):
        shown = [list(g) for g in groups]
        raise BadInput(f"groups {shown} must hold each of the ranks 0..{workers - 1} once, and none may be empty")


def tree_route(
    parents: Mapping[int, int | None],
    *,
    contributors: frozenset[int] | set[int],
    back: Mapping[int, int | None] | None = None,
    split: bool = False,
    on_request: bool = False,
) -> Route:
    """The route along `parents` (the root maps to None); `back` is the way of the result if it differs.

    `contributors` add a gradient and want the result; `split` puts a gate between the two halves;
    with `on_request` the result goes to each node when it asks.
    """
    down = parents if back is None else back
    return {node: _program(node, parents, down, node in contributors, split, on_request) for node in parents}


def _program(
    node: int,
    up: Mapping[int, int | None],
    down: Mapping[int, int | None],
    contributes: bool,
    split: bool,
    on_request: bool,
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
        if on_request:
            steps.append(Step(ASK, (source,)))
        steps.append(Step(COPY, (source,)))
    if parent is None:
        steps.append(Step(FINISH))
        if split:
            steps.append(Step(GATE))
    if receivers and not on_request:
        steps.append(Step(SEND, receivers))
    if contributes:
        steps.append(Step(DELIVER))
    if receivers and on_request:
        # After DELIVER: the root's own next forward pass must not wait for others to ask.
        steps.append(Step(OFFER, receivers))
    return tuple(steps)


def hub(workers: Sequence[int], hubs: Sequence[int], *, split: bool = False, on_request: bool = False) -> list[Route]:
    """Every worker sends to a hub and gets the result from it; one route a hub."""
    if not hubs:
        raise BadInput("aggregation 'hub' needs a hub; give hubs=[...] or DOVETAIL_HUBS, or use 'shuffle'")
    everyone = frozenset(workers)
    return [
        tree_route({**dict.fromkeys(workers, h), h: None}, contributors=everyone, split=split, on_request=on_request)
        for h in hubs
    ]


def shuffle(workers: Sequence[int], *, split: bool = False, on_request: bool = False) -> list[Route]:
    """Fully sharded colocated servers: each worker is the hub of its share of the chunks."""
    everyone = frozenset(workers)
    return [
        tree_route(
            {w: None if w == root else root for w in workers},
            contributors=everyone,
            split=split,
            on_request=on_request,
        )
        for root in workers
    ]


def ring(workers: Sequence[int], *, split: bool = False) -> list[Route]:
    """The sum travels once around the ring and ends at the root, then the result does; one route a root."""
    routes = []
    for i, root in enumerate(workers):
        chain = [*workers[i + 1 :], *workers[:i]]  # from the root's successor to its predecessor
        up, back = _around(chain, root)
        routes.append(
            tree_route({**up, root: None}, back={**back, root: None}, contributors=frozenset(workers), split=split)
        )
    return routes


def _around(chain: Sequence[int], root: int) -> tuple[dict[int, int], dict[int, int]]:
    """Next node of the sum, and previous node of the result, on the way root -> chain -> root."""
    return dict(zip(chain, [*chain, root][1:], strict=True)), dict(zip(chain, [root, *chain][:-1], strict=True))


def halving_doubling(workers: Sequence[int], *, split: bool = False) -> list[Route]:
    """Recursive halving, then doubling; neighbours exchange the largest parts, so ranks close together gain."""
    return bcube(workers, base=2, split=split)


def bcube(workers: Sequence[int], *, base: int = 4, split: bool = False) -> list[Route]:
    """In round i a node exchanges with the base-1 nodes that differ from it in digit i; one route a node of the cube.

    Nodes beyond the largest power of `base` fold: each gives its gradient to a neighbour that is in the cube.
    """
    base, size = cube(len(workers), base)
    blocks = cut(workers, size)
    inner = [block[0] for block in blocks]
    folded = {node: block[0] for block in blocks for node in block[1:]}
    everyone = frozenset(workers)
    return [
        tree_route(
            {**{inner[i]: _towards(i, root, base, inner) for i in range(size)}, **folded},
            contributors=everyone,
            split=split,
        )
        for root in range(size)
    ]


def _towards(index: int, root: int, base: int, inner: Sequence[int]) -> int | None:
    """Where the sum goes next: the lowest digit in which `index` and `root` differ is made equal."""
    if index == root:
        return None
    place = 1
    while (index // place) % base == (root // place) % base:
        place *= base
    return inner[index + ((root // place) % base - (index // place) % base) * place]


def tree(workers: Sequence[int], *, split: bool = False) -> list[Route]:
    """Two binary trees, each for half of the bytes; the second is the first with ranks shifted by one."""
    everyone = frozenset(workers)
    count = len(workers)
    parents = midpoint_parents(count)
    routes = []
    for shift in range(min(2, count)):
        node = [workers[(i - shift) % count] for i in range(count)]
        up = {node[i]: None if parent is None else node[parent] for i, parent in enumerate(parents)}
        routes.append(tree_route(up, contributors=everyone, split=split))
    return routes


def two_level(
    groups: Groups,
    *,
    global_weights: Sequence[float] | None = None,
    local_weights: Mapping[int, float] | None = None,
    count: int | None = None,
    split: bool = False,
) -> list[Route]:
    """Members -> local master of their group -> global master, and back the same way.

    The routes (`count`, by default one a node) share the global masters out to groups by `global_weights`
    (default: group sizes), and the masters inside a group to members by `local_weights` (default: even).
    """
    everyone = frozenset(node for group in groups for node in group)
    weights = global_weights if global_weights is not None else [len(group) for group in groups]
    leaders = in_turn(weights, count=count or len(everyone))
    # Global and local-only mastership take turns separately, so that each is even among the members by itself.
    share = [[1.0 if local_weights is None else local_weights[node] for node in group] for group in groups]
    as_global = [iter(in_turn(share[g], count=leaders.count(g))) for g in range(len(groups))]
    as_local = [iter(in_turn(share[g], count=len(leaders) - leaders.count(g))) for g in range(len(groups))]
    routes = []
    for leader in leaders:
        masters = [group[next(as_global[g] if g == leader else as_local[g])] for g, group in enumerate(groups)]
        parents: dict[int, int | None] = {n: masters[g] for g, group in enumerate(groups) for n in group}
        parents |= dict.fromkeys(masters, masters[leader])
        parents[masters[leader]] = None
        routes.append(tree_route(parents, contributors=everyone, split=split))
    return routes


def rack_hubs(racks: Groups, hubs: Sequence[int], *, exchange: str = "ring", split: bool = False) -> list[Route]:
    """Workers -> the hub of their rack, hubs among themselves by a ring or sharded, and back; one route a hub."""
    if len(racks) != len(hubs):
        raise BadInput(f"{len(racks)} racks and {len(hubs)} hubs; 'rack-hubs' needs one hub in each rack")
    if exchange not in ("ring", "sharded"):
        raise BadInput(f"exchange {exchange!r} between hubs is unknown; it is 'ring' or 'sharded'")
    everyone = frozenset(node for rack in racks for node in rack)
    local: dict[int, int | None] = {node: h for rack, h in zip(racks, hubs, strict=True) for node in rack}
    routes = []
    for i, root in enumerate(hubs):
        others = [*hubs[i + 1 :], *hubs[:i]]
        star = dict.fromkeys(others, root)
        up, back = _around(others, root) if exchange == "ring" else (star, star)
        routes.append(
            tree_route(
                {**local, **up, root: None}, back={**local, **back, root: None}, contributors=everyone, split=split
            )
        )
    return routes
