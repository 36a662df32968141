"""What a collective costs for an order of ranks, from the pairwise cost of the nodes.

A model prices many orders at once: `model(orders)` takes an integer array of shape (orders, ranks), in which
`orders[i, r]` is the node that gets rank r, and returns the cost of each and a finer measure to break ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.errors import BadInput
from dovetail.network.shape import cube, cut, midpoint_parents

Floats = NDArray[np.float64]
Orders = NDArray[np.intp]
Model = Callable[[Orders], tuple[Floats, Floats]]

ALGORITHMS = ("ring", "ring-bottleneck", "halving-doubling", "tree", "bcube")
_SHORT = {"hd": "halving-doubling", "dbt": "tree", "double-binary-tree": "tree"}
DEFAULT_SIZE = 100 * 1024 * 1024


def algorithm_name(name: str) -> str:
    """The full name of an algorithm; `hd` is short for `halving-doubling`."""
    full = _SHORT.get(name, name)
    if full not in ALGORITHMS:
        raise BadInput(f"algorithm {name!r} is unknown; it is one of {', '.join(ALGORITHMS)}")
    return full


class Prices:
    """c_ij(size): seconds from node i to node j; the diagonal is never used."""

    def __init__(self, matrix: Any) -> None:
        """`matrix` is N x N seconds (for any size), or a pair (latency, bandwidth) of N x N, or has those two."""
        if hasattr(matrix, "latency") and hasattr(matrix, "bandwidth"):
            matrix = (matrix.latency, matrix.bandwidth) if len(matrix.bandwidth) else matrix.latency
        try:
            values = np.asarray(matrix, dtype=np.float64)
        except (TypeError, ValueError):
            raise BadInput(
                "the matrix is not a table of numbers; give N x N seconds, or latency and bandwidth"
            ) from None
        if values.ndim not in (2, 3) or values.shape[-1] != values.shape[-2] or values.shape[-1] == 0:
            raise BadInput(f"a matrix of shape {values.shape} is not N x N seconds or a pair (latency, bandwidth)")
        if values.ndim == 3 and values.shape[0] != 2:
            raise BadInput(f"{values.shape[0]} matrices; give one of seconds, or a pair (latency, bandwidth)")
        self.count = values.shape[-1]
        self._latency = _checked(values[0] if values.ndim == 3 else values, "cost", least=0.0)
        self._per_byte: Floats | None = None
        if values.ndim == 3:
            bandwidth = values[1].copy()
            np.fill_diagonal(bandwidth, np.inf)
            _checked(bandwidth, "bandwidth", least=math.ulp(0.0))
            self._per_byte = 1.0 / bandwidth

    def at(self, size: float) -> Floats:
        """The matrix for messages of `size` bytes."""
        return self._latency if self._per_byte is None else self._latency + size * self._per_byte


def _checked(values: Floats, what: str, *, least: float) -> Floats:
    values = values.copy()
    off = ~np.eye(len(values), dtype=bool)
    good = (values >= least) & (np.isfinite(values) if what == "cost" else ~np.isnan(values))
    bad = np.argwhere(off & ~good)
    if len(bad):
        i, j = (int(k) for k in bad[0])
        raise BadInput(f"the {what} between nodes {i} and {j} is {values[i, j]}; measure that pair again")
    if what == "cost":
        np.fill_diagonal(values, 0.0)
    return values


def collective_cost(
    matrix: ArrayLike | Any,
    order: Sequence[int] | None = None,
    *,
    algorithm: str = "ring",
    size: float = DEFAULT_SIZE,
    base: int = 4,
) -> float:
    """Cost in seconds when rank r is on node `order[r]` (default: as the matrix stands)."""
    prices = Prices(matrix)
    found = np.asarray(range(prices.count) if order is None else order)
    if sorted(found.tolist()) != list(range(prices.count)):
        raise BadInput(f"order {found.tolist()} must name each of the nodes 0..{prices.count - 1} once")
    return float(cost_model(prices, algorithm=algorithm, size=size, base=base)(found[None, :].astype(np.intp))[0][0])


def cost_model(prices: Prices, *, algorithm: str, size: float, base: int = 4) -> Model:
    """The cost of `algorithm` for a buffer of `size` bytes on these nodes."""
    count, name = prices.count, algorithm_name(algorithm)
    if count == 1:
        return lambda orders: (np.zeros(len(orders)), np.zeros(len(orders)))
    if name == "ring":
        return _ring(prices.at(size), np.add.reduce)
    if name == "ring-bottleneck":
        return _ring(prices.at(size), np.maximum.reduce)
    if name == "tree":
        return _double_tree(prices.at(size / 2), count)
    found = rounds(count, base=2 if name == "halving-doubling" else base)
    return _sum_of_rounds([(np.asarray(pairs, dtype=np.intp), prices.at(size * share)) for pairs, share in found])


def rounds(count: int, *, base: int) -> list[tuple[list[tuple[int, int]], float]]:
    """(pairs of ranks, share of the bytes) of each round of bcube; base 2 is halving-doubling.

    Ranks beyond the largest power fold first, as in plan/patterns.py: they hand all they have to a neighbour.
    """
    base, size = cube(count, base)
    blocks = cut(range(count), size)
    inner = [block[0] for block in blocks]
    found: list[tuple[list[tuple[int, int]], float]] = []
    fold = [(node, block[0]) for block in blocks for node in block[1:]]
    if fold:
        found.append((fold + [(b, a) for a, b in fold], 1.0))
    place = 1
    while place < size:
        pairs = [
            (inner[j], inner[j + (digit - (j // place) % base) * place])
            for j in range(size)
            for digit in range(base)
            if digit != (j // place) % base
        ]
        found.append((pairs, 1 / (place * base)))
        place *= base
    return found


def _ring(cost: Floats, combine: Callable[..., Any]) -> Model:
    def model(orders: Orders) -> tuple[Floats, Floats]:
        hops = cost[orders, np.roll(orders, -1, axis=1)]
        return combine(hops, axis=1), hops.mean(axis=1)

    return model


def _sum_of_rounds(found: Sequence[tuple[Orders, Floats]]) -> Model:
    def model(orders: Orders) -> tuple[Floats, Floats]:
        worst, mean = np.zeros(len(orders)), np.zeros(len(orders))
        for pairs, cost in found:
            values = cost[orders[:, pairs[:, 0]], orders[:, pairs[:, 1]]]
            worst += values.max(axis=1)
            mean += values.mean(axis=1)
        return worst, mean

    return model


def tree_levels(count: int) -> list[tuple[Orders, Orders]]:
    """(parents, children) of the midpoint tree, deepest children first; each level has left or right children only."""
    parents = midpoint_parents(count)
    depth = [0] * count
    for node in range(count):
        above = parents[node]
        while above is not None:
            depth[node], above = depth[node] + 1, parents[above]
    levels = []
    for level in range(max(depth), 0, -1):
        # A parent occurs at most once in a level, so that one assignment can update all of them.
        for is_left in (True, False):
            children = [n for n in range(count) if depth[n] == level and (n < (parents[n] or 0)) == is_left]
            if children:
                above_them = np.array([parents[n] for n in children], dtype=np.intp)
                levels.append((above_them, np.array(children, dtype=np.intp)))
    return levels


def _double_tree(cost: Floats, count: int) -> Model:
    levels = tree_levels(count)
    root = (count - 1) // 2

    def one(orders: Orders) -> tuple[Floats, Floats]:
        reach = np.zeros(orders.shape)
        for above, below in levels:
            through = cost[orders[:, above], orders[:, below]] + reach[:, below]
            reach[:, above] = np.maximum(reach[:, above], through)
        return reach[:, root], reach.mean(axis=1)

    def model(orders: Orders) -> tuple[Floats, Floats]:
        first, first_mean = one(orders)
        second, second_mean = one(np.roll(orders, 1, axis=1))
        return np.maximum(first, second), first_mean + second_mean

    return model
