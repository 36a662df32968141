"""The search finds the best order when few nodes let us know it, and good ones when they are many."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.network.collective import ALGORITHMS, Prices, collective_cost, cost_model
from dovetail.network.rank_order import rank_order
from dovetail.network.rank_search import local_search
from dovetail.network.rank_solver import improve
from dovetail.network.tour import _Tour, shortest_ring


def racks(count: int, size: int, seed: int) -> np.ndarray:
    """Hosts of racks in mixed order: 10 us inside a rack, 60 us between, some noise."""
    rng = np.random.default_rng(seed)
    home = rng.permutation(count) // size
    values = np.where(home[:, None] == home[None], 10e-6, 60e-6) * rng.uniform(1, 1.2, (count, count))
    return np.maximum(values, values.T)


def brute_force(matrix: np.ndarray, algorithm: str) -> float:
    return min(
        collective_cost(matrix, order, algorithm=algorithm) for order in itertools.permutations(range(len(matrix)))
    )


def within(cost: float) -> object:
    return pytest.approx(cost, rel=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(count=st.integers(1, 5), seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_few_nodes_get_the_best_of_all_orders(algorithm: str, count: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).uniform(1, 2, (count, count))  # not symmetric
    order = rank_order(matrix, algorithm)
    assert collective_cost(matrix, order, algorithm=algorithm) == within(brute_force(matrix, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_eight_nodes_get_the_best_of_all_orders(algorithm: str) -> None:
    matrix = racks(8, 3, seed=1)
    model = cost_model(Prices(matrix), algorithm=algorithm, size=0)
    best = float(model(np.array(list(itertools.permutations(range(8)))))[0].min())
    assert collective_cost(matrix, rank_order(matrix, algorithm), algorithm=algorithm) == within(best)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_local_search_alone_finds_the_optimum_of_seven(algorithm: str) -> None:
    matrix = racks(7, 3, seed=2)
    model = cost_model(Prices(matrix), algorithm=algorithm, size=0)
    best = float(model(np.array(list(itertools.permutations(range(7)))))[0].min())
    rng = np.random.default_rng(0)
    order = local_search(model, list(range(7)), rng=rng, kicks=30, expired=lambda: False)
    assert collective_cost(matrix, order, algorithm=algorithm) == within(best)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_solver_finds_the_optimum_from_a_bad_start_and_proves_it(algorithm: str) -> None:
    matrix = racks(6, 3, seed=3)
    model = cost_model(Prices(matrix), algorithm=algorithm, size=0)
    orders = np.array(list(itertools.permutations(range(6))))
    costs = model(orders)[0]
    worst, best = orders[costs.argmax()].tolist(), float(costs.min())
    arguments = {"algorithm": algorithm, "size": 0.0, "base": 4, "time_limit": 20.0, "seed": 0}
    verdict = improve(Prices(matrix), worst, **arguments)  # type: ignore[arg-type]
    assert verdict.proven
    assert verdict.order is not None
    # The solver counts in hundred-thousandths of the dearest pair.
    assert collective_cost(matrix, verdict.order, algorithm=algorithm) == pytest.approx(best, rel=1e-4)
    again = improve(Prices(matrix), verdict.order, **arguments)  # type: ignore[arg-type]
    assert again.order is None
    assert again.proven


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "tree", "bcube"])
def test_racks_stay_together(algorithm: str) -> None:
    matrix = racks(32, 8, seed=4)
    order = rank_order(matrix, algorithm, time_limit=2)
    shuffled = [random.Random(s).sample(range(32), 32) for s in range(20)]
    usual = np.mean([collective_cost(matrix, o, algorithm=algorithm) for o in shuffled])
    assert sorted(order) == list(range(32))
    assert collective_cost(matrix, order, algorithm=algorithm) < 0.75 * usual
    assert collective_cost(matrix, order, algorithm=algorithm) <= collective_cost(matrix, algorithm=algorithm)


@pytest.mark.parametrize(("algorithm", "inside", "across"), [("halving-doubling", 4, 3), ("bcube", 2, 2)])
def test_racks_fill_whole_blocks_of_a_cube(algorithm: str, inside: int, across: int) -> None:
    """128 nodes in racks of 16: the first rounds stay in the racks (bcube: 64 of them in a cube, after folding)."""
    matrix = racks(128, 16, seed=8)
    cost = collective_cost(matrix, rank_order(matrix, algorithm, time_limit=3), algorithm=algorithm)
    assert cost <= 1.2 * (inside * 10e-6 + across * 60e-6)


def test_a_ring_crosses_each_rack_border_once() -> None:
    matrix = racks(32, 8, seed=5)
    order = rank_order(matrix, "ring", time_limit=2)
    assert sum(matrix[a, b] > 30e-6 for a, b in zip(order, order[1:] + order[:1], strict=True)) == 4
    assert order[0] == 0


def test_the_search_is_repeatable() -> None:
    matrix = racks(12, 4, seed=6)
    frozen = {"time_limit": 1.0, "clock": lambda: 0.0}
    assert rank_order(matrix, seed=3, **frozen) == rank_order(matrix, seed=3, **frozen)  # type: ignore[arg-type]


def spanning_tree(cost: np.ndarray) -> list[tuple[int, int]]:
    """Edges of the least spanning tree of all nodes but 0 (Prim)."""
    near, via = cost[1].copy(), np.ones(len(cost), dtype=int)
    near[[0, 1]] = np.inf
    edges = []
    for _ in range(len(cost) - 2):
        node = int(near.argmin())
        edges.append((int(via[node]), node))
        closer = (cost[node] < near) & np.isfinite(near)
        near[closer], via[closer] = cost[node][closer], node
        near[node] = np.inf
    return edges


def held_karp_bound(cost: np.ndarray, length: float) -> float:
    """A lower bound on any tour: least 1-trees, with a fee per node so that degrees approach 2."""
    count, fee, best, step = len(cost), np.zeros(len(cost)), 0.0, 2.0
    for _ in range(200):
        priced = cost + fee[:, None] + fee[None]
        two = np.argsort(np.where(np.arange(count) > 0, priced[0], np.inf))[:2].tolist()
        edges = np.array([*spanning_tree(priced), (0, two[0]), (0, two[1])])
        degree = np.bincount(edges.ravel(), minlength=count)
        bound = priced[edges[:, 0], edges[:, 1]].sum() - 2 * fee.sum()
        best, step = max(best, bound), step * 0.97
        if (degree == 2).all():
            break
        fee = fee + step * (length - bound) / ((degree - 2) ** 2).sum() * (degree - 2)
    return best


@pytest.mark.parametrize("kind", ["racks", "points"])
def test_ring_of_512_is_within_three_percent_of_a_bound_no_ring_can_beat(kind: str) -> None:
    points = np.random.default_rng(7).random((512, 2))
    matrix = racks(512, 16, seed=7) if kind == "racks" else np.linalg.norm(points[:, None] - points[None], axis=-1)
    order = rank_order(matrix, "ring", time_limit=8)
    length = collective_cost(matrix, order)
    assert length <= 1.03 * held_karp_bound(matrix, length)


@given(count=st.integers(4, 30), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_moves_keep_the_tour_whole_and_its_length_true(count: int, seed: int) -> None:
    cost = np.random.default_rng(seed).random((count, count))
    cost = np.maximum(cost, cost.T)
    rng = random.Random(seed)
    start = rng.sample(range(count), count)
    tour = _Tour(cost, start)
    tour.improve(start[:])
    for _ in range(5 * (count >= 8)):
        tour.improve(tour.kick(rng))
    assert sorted(tour.nodes) == list(range(count))
    assert [tour.nodes[tour.position[n]] for n in range(count)] == list(range(count))
    assert tour.length == pytest.approx(cost[tour.nodes, np.roll(tour.nodes, -1)].sum())
    found = shortest_ring(cost, start, rng=rng, kicks=5, expired=lambda: False)
    assert cost[found, np.roll(found, -1)].sum() <= cost[start, np.roll(start, -1)].sum() + 1e-12
