"""Every pattern's routes are correct for any node count, and move exactly the bytes derived for them."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.engine.reference import run
from dovetail.errors import BadInput
from dovetail.network.shape import cut, midpoint_parents
from dovetail.plan.patterns import PATTERNS, bcube, rack_hubs, routes, two_level
from dovetail.plan.steps import (
    ADD,
    ASK,
    COPY,
    DELIVER,
    FETCH,
    FINISH,
    GATE,
    OFFER,
    SEND,
    Route,
    Step,
    check_route,
    root_of,
)

COLLECTIVE = [p for p in PATTERNS if p not in ("hub", "rack-hubs")]


def sent(found: list[Route], workers: int, nodes: int | None = None) -> tuple[list[float], int, float]:
    """Per node and in all, in units of S; each route carries S / len(routes)."""
    array = np.zeros(len(found) * 4, dtype=np.float32)
    outcome = run(found, [array] * workers)
    per_node = [outcome.sent_by(n) / array.nbytes for n in range(nodes or workers)]
    return per_node, sum(outcome.sent.values()), array.nbytes


def across(found: list[Route], workers: int, racks: list[list[int]]) -> float:
    array = np.zeros(len(found) * 4, dtype=np.float32)
    return run(found, [array] * workers).sent_across(racks) / array.nbytes


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 27, 33])
@pytest.mark.parametrize("split", [False, True])
def test_routes_are_correct_for_any_worker_count(pattern: str, workers: int, split: bool) -> None:
    hubs = {"hub": 2, "rack-hubs": min(3, workers)}.get(pattern, 0)
    found = routes(pattern, workers=workers, hubs=hubs, split=split)
    for route in found:
        check_route(route)
        assert {n for n, program in route.items() if Step(FETCH) in program} == set(range(workers))
        gates = [n for n, program in route.items() if Step(GATE) in program]
        assert gates == ([root_of(route)] if split else [])


@pytest.mark.parametrize("pattern", COLLECTIVE)
def test_one_worker_puts_nothing_on_the_wire(pattern: str) -> None:
    for route in routes(pattern, workers=1):
        assert route == {0: (Step(FETCH), Step(FINISH), Step(DELIVER))}


@pytest.mark.parametrize("pattern", COLLECTIVE)
@pytest.mark.parametrize("workers", [2, 3, 5, 8, 11, 16])
def test_every_collective_moves_the_least_possible_in_all(pattern: str, workers: int) -> None:
    _, total, size = sent(routes(pattern, workers=workers), workers)
    assert total == 2 * (workers - 1) * size


@pytest.mark.parametrize("pattern", COLLECTIVE)
def test_split_moves_half_before_the_gate(pattern: str) -> None:
    found = routes(pattern, workers=6, split=True)
    array = np.zeros(len(found) * 4, dtype=np.float32)
    outcome = run(found, [array] * 6)
    assert sum(outcome.early.values()) == 5 * array.nbytes
    assert sum(outcome.sent.values()) == 10 * array.nbytes


@pytest.mark.parametrize(
    ("pattern", "workers"),
    [
        ("shuffle", 3),
        ("shuffle", 8),
        ("ring", 2),
        ("ring", 5),
        ("ring", 8),
        ("halving-doubling", 4),
        ("halving-doubling", 16),
        ("bcube", 4),
        ("bcube", 16),
        ("two-level", 9),
        ("two-level", 16),
    ],
)
def test_even_patterns_load_every_node_alike(pattern: str, workers: int) -> None:
    per_node, _, _ = sent(routes(pattern, workers=workers), workers)
    assert per_node == pytest.approx([2 * (workers - 1) / workers] * workers)


def test_halving_doubling_folds_the_remainder_onto_neighbours() -> None:
    found = routes("halving-doubling", workers=6)  # a cube of 4: {0, 1}, {2, 3} fold, 4 and 5 stand alone
    per_node, _, _ = sent(found, 6)
    in_cube = 2 * 3 / 4
    assert per_node == pytest.approx([in_cube + 1, 1, in_cube + 1, 1, in_cube, in_cube])
    assert {root_of(r) for r in found} == {0, 2, 4, 5}


def test_halving_doubling_exchanges_the_largest_part_with_the_nearest_rank() -> None:
    found = routes("halving-doubling", workers=8)
    array = np.zeros(8 * 4, dtype=np.float32)
    pairs = run(found, [array] * 8).sent
    assert [pairs[0, peer] / array.nbytes for peer in (1, 2, 4)] == [2 / 2, 2 / 4, 2 / 8]
    assert pairs[0, 3] == 0


def test_bcube_exchanges_with_each_peer_of_a_round() -> None:
    found = bcube(range(9), base=3)
    array = np.zeros(9 * 4, dtype=np.float32)
    pairs = run(found, [array] * 9).sent
    assert [pairs[4, peer] / array.nbytes for peer in (3, 5)] == pytest.approx([2 / 3, 2 / 3])
    assert [pairs[4, peer] / array.nbytes for peer in (1, 7)] == pytest.approx([2 / 9, 2 / 9])


def test_tree_has_two_roots_and_few_inner_nodes_in_common() -> None:
    first, second = routes("tree", workers=15)
    assert root_of(first) == 7
    assert root_of(second) == 6
    inner = [{n for n, p in r.items() if any(s.op == ADD for s in p)} for r in (first, second)]
    assert not inner[0] & inner[1]
    assert midpoint_parents(7) == [1, 3, 1, None, 5, 3, 5]


@pytest.mark.parametrize(("racks", "size"), [(2, 4), (4, 2), (4, 4), (2, 8)])
def test_bytes_between_racks(racks: int, size: int) -> None:
    nodes = racks * size
    groups = cut(range(nodes), racks)
    assert across(routes("shuffle", workers=nodes), nodes, groups) == pytest.approx(2 * size * (racks - 1))
    assert across(routes("two-level", workers=nodes, groups=groups), nodes, groups) == pytest.approx(2 * (racks - 1))
    # Each of the ring's `racks` edges between racks carries all but one chunk, twice.
    assert across(routes("ring", workers=nodes), nodes, groups) == pytest.approx(2 * racks * (nodes - 1) / nodes)
    # Rounds inside a rack come first, so each rack's sum of a chunk leaves it once.
    assert across(routes("halving-doubling", workers=nodes), nodes, groups) == pytest.approx(2 * (racks - 1))


@pytest.mark.parametrize("exchange", ["ring", "sharded"])
def test_rack_hubs_send_one_sum_a_rack_between_racks(exchange: str) -> None:
    racks = [[0, 1, 2], [3, 4], [5, 6, 7]]
    found = rack_hubs(racks, [8, 9, 10], exchange=exchange)
    for route in found:
        check_route(route)
    per_node, total, size = sent(found, 8, nodes=11)
    assert per_node[:8] == [1] * 8
    assert per_node[8:] == pytest.approx([3 + 2 * 2 / 3, 2 + 2 * 2 / 3, 3 + 2 * 2 / 3])
    assert total == (2 * 8 + 2 * 2) * size
    homes = [[*rack, h] for rack, h in zip(racks, [8, 9, 10], strict=True)]
    assert across(found, 8, homes) == pytest.approx(2 * 2)


def test_the_hubs_of_a_ring_talk_to_neighbours_only_and_sharded_ones_to_all() -> None:
    racks = [[0], [1], [2], [3]]
    array = np.zeros(16, dtype=np.float32)
    ring = run(rack_hubs(racks, [4, 5, 6, 7], exchange="ring"), [array] * 4).sent
    sharded = run(rack_hubs(racks, [4, 5, 6, 7], exchange="sharded"), [array] * 4).sent
    assert ring[4, 6] == 0 < ring[4, 5]
    assert sharded[4, 6] == sharded[4, 5] > 0


def test_hub_on_the_wire() -> None:
    per_node, total, size = sent(routes("hub", workers=5, hubs=2), 5, nodes=7)
    assert per_node == [1] * 5 + [2.5, 2.5]
    assert total == 2 * 5 * size


def test_two_level_masters_follow_sizes_and_weights() -> None:
    groups = [[0, 1, 2, 3, 4, 5], [6, 7]]
    found = two_level(groups)
    assert sorted(root_of(r) for r in found) == list(range(8))
    heavy = two_level(groups, global_weights=[1, 3], local_weights={n: float(n != 0) for n in range(8)}, count=40)
    roots = [root_of(r) for r in heavy]
    assert sum(r >= 6 for r in roots) == 30
    assert 0 not in roots
    assert all(not any(s.op == ADD for s in r[0]) for r in heavy)
    for route in heavy:
        check_route(route)


def test_pull_on_request() -> None:
    (route,) = routes("hub", workers=2, hubs=1, on_request=True)
    assert route[0] == (Step(FETCH), Step(SEND, (2,)), Step(ASK, (2,)), Step(COPY, (2,)), Step(DELIVER))
    assert route[2] == (Step(ADD, (0, 1)), Step(FINISH), Step(OFFER, (0, 1)))
    first, _ = routes("shuffle", workers=2, on_request=True)
    assert first[0] == (Step(FETCH), Step(ADD, (1,)), Step(FINISH), Step(DELIVER), Step(OFFER, (1,)))
    check_route(route)
    check_route(first)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: (Step(FETCH), Step(FETCH), Step(SEND, (1,)), Step(COPY, (1,)), Step(DELIVER))}, "fetch once"),
        ({0: (Step(FETCH), Step(COPY, (1,)), Step(SEND, (1,)), Step(DELIVER))}, "waits forever"),
        ({0: (Step(FETCH), Step(SEND, (1,)), Step(DELIVER))}, "before it has the result"),
        ({2: (Step(FETCH), Step(SEND, (0, 1)), Step(COPY, (1,)), Step(DELIVER))}, "never received"),
        ({1: (Step(FETCH), Step(FINISH), Step(SEND, (0, 2)), Step(DELIVER))}, "counts node 0 wrongly"),
        ({0: (Step(FETCH), Step(SEND, (7,)), Step(COPY, (1,)), Step(DELIVER))}, "names node 7"),
        ({0: (Step(FETCH), Step(FINISH), Step(DELIVER))}, "finished at 2 nodes"),
        ({0: (Step("jump"),)}, "unknown step 'jump'"),
        ({2: (Step(FETCH), Step(SEND, (1, 1)), Step(COPY, (1,)), Step(DELIVER))}, "twice"),
    ],
)
def test_check_route_says_what_is_wrong(change: Route, says: str) -> None:
    good = routes("shuffle", workers=3)[1]
    check_route(good)
    with pytest.raises(BadInput, match=says):
        check_route({**good, **change})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"aggregation": "star", "workers": 2}, "one of shuffle"),
        ({"aggregation": "ring", "workers": 0}, "0 workers"),
        ({"aggregation": "hub", "workers": 2}, "needs a hub"),
        ({"aggregation": "rack-hubs", "workers": 2}, "needs a hub per rack"),
        ({"aggregation": "rack-hubs", "workers": 2, "hubs": 3}, "cannot form 3 groups"),
        ({"aggregation": "rack-hubs", "workers": 2, "hubs": 1, "groups": [[0], [1]]}, "2 racks and 1 hubs"),
        ({"aggregation": "rack-hubs", "workers": 2, "hubs": 1, "exchange": "mesh"}, "'mesh'"),
        ({"aggregation": "two-level", "workers": 3, "groups": [[0], [1, 1]]}, "ranks 0..2 once"),
        ({"aggregation": "bcube", "workers": 3, "base": 1}, "base 1"),
        ({"aggregation": "ring", "workers": 3, "on_request": True}, "on request"),
    ],
)
def test_bad_requests(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        routes(**arguments)  # type: ignore[arg-type]
