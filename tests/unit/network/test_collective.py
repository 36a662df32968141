"""The cost models agree with each algorithm written out plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.reference import run
from dovetail.errors import BadInput
from dovetail.network.collective import collective_cost, rounds
from dovetail.plan.patterns import routes

Matrix = list[list[float]]


def ring(c: Matrix) -> float:
    return sum(c[i][(i + 1) % len(c)] for i in range(len(c)))


def halving_doubling(c: Matrix) -> float:
    """For powers of two."""
    cost, distance = 0.0, 1
    while distance < len(c):
        cost += max(c[j][j ^ distance] for j in range(len(c)))
        distance *= 2
    return cost


def double_tree(c: Matrix) -> float:
    def reach(i: int, j: int, shift: int) -> float:
        if i >= j:
            return 0.0
        middle = (i + j) // 2
        ways = []
        for first, last in ((i, middle - 1), (middle + 1, j)):
            if first <= last:
                child = (first + last) // 2
                ways.append(c[(middle - shift) % len(c)][(child - shift) % len(c)] + reach(first, last, shift))
        return max(ways)

    return max(reach(0, len(c) - 1, shift) for shift in (0, 1))


def random_matrix(count: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).uniform(1, 10, (count, count))
    np.fill_diagonal(values, 0)
    return values


@given(st.integers(2, 40), st.integers(0, 1000))
def test_ring_and_tree_as_written_out(count: int, seed: int) -> None:
    matrix = random_matrix(count, seed)
    order = np.random.default_rng(seed).permutation(count).tolist()
    seen = matrix[np.ix_(order, order)].tolist()
    assert collective_cost(matrix, order, algorithm="ring") == pytest.approx(ring(seen))
    assert collective_cost(matrix, order, algorithm="tree") == pytest.approx(double_tree(seen))
    hops = [seen[i][(i + 1) % count] for i in range(count)]
    assert collective_cost(matrix, order, algorithm="ring-bottleneck") == pytest.approx(max(hops))


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_halving_doubling_as_written_out(count: int) -> None:
    matrix = random_matrix(count, count)
    assert collective_cost(matrix, algorithm="hd") == pytest.approx(halving_doubling(matrix.tolist()))
    assert collective_cost(matrix, algorithm="bcube", base=2) == collective_cost(matrix, algorithm="hd")


def test_bcube_of_nine() -> None:
    c = random_matrix(9, 0)
    first = max(c[j, k] for j in range(9) for k in range(9) if j != k and j // 3 == k // 3)
    second = max(c[j, k] for j in range(9) for k in range(9) if j != k and j % 3 == k % 3)
    assert collective_cost(c, algorithm="bcube", base=3) == pytest.approx(first + second)


@pytest.mark.parametrize(("name", "base"), [("halving-doubling", 2), ("bcube", 4)])
@pytest.mark.parametrize("count", [3, 5, 6, 8, 12, 16, 21])
def test_rounds_are_the_ones_that_the_routes_run(name: str, base: int, count: int) -> None:
    modelled = {pair for pairs, _ in rounds(count, base=base) for pair in pairs}
    found = routes(name, workers=count)
    assert set(run(found, [np.zeros(len(found))] * count).sent) == modelled


def test_sizes_of_messages_with_latency_and_bandwidth() -> None:
    latency, bandwidth = np.full((4, 4), 1.0), np.full((4, 4), 10.0)
    pair = (latency, bandwidth)
    assert collective_cost(pair, algorithm="ring", size=80) == pytest.approx(4 * (1 + 8))
    assert collective_cost(pair, algorithm="hd", size=80) == pytest.approx((1 + 4) + (1 + 2))
    assert collective_cost(pair, algorithm="tree", size=80) == pytest.approx(2 * (1 + 4))
    assert collective_cost(pair, algorithm="bcube", size=80) == pytest.approx(1 + 2)


def test_folding_is_a_round_of_whole_buffers() -> None:
    pair = (np.zeros((3, 3)), np.full((3, 3), 10.0))
    assert collective_cost(pair, algorithm="hd", size=80) == pytest.approx(8 + 4)


def test_one_node_costs_nothing() -> None:
    assert collective_cost([[0.0]], algorithm="tree") == 0


@pytest.mark.parametrize(
    ("matrix", "options", "says"),
    [
        ([[0, 1]], {}, "shape"),
        ("abc", {}, "not a table"),
        (np.zeros((3, 2, 2)), {}, "3 matrices"),
        ([[0, float("nan")], [1, 0]], {}, "nodes 0 and 1 is nan"),
        ([[0, 1], [-1, 0]], {}, "nodes 1 and 0 is -1"),
        ((np.ones((2, 2)), np.zeros((2, 2))), {}, "bandwidth between nodes 0 and 1"),
        (np.ones((2, 2)), {"order": [0, 0]}, "once"),
        (np.ones((2, 2)), {"algorithm": "star"}, "'star' is unknown"),
        (np.ones((4, 4)), {"algorithm": "bcube", "base": 1}, "base 1"),
    ],
)
def test_bad_input(matrix: object, options: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        collective_cost(matrix, **options)  # type: ignore[arg-type]
