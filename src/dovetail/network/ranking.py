"""The best order of hosts for a collective, beside the order they came in and random ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.network.collective import Prices, algorithm_name, cost_model
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.rank_order import rank_order
from dovetail.network.uplinks import without_chance
from dovetail.units import format_seconds

RANDOM_ORDERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """The order found, and what the collective is predicted to cost in it and in others (seconds)."""

    algorithm: str
    hosts: tuple[str, ...]  # by rank
    order: tuple[int, ...]  # rank -> place in the given order, from 0
    cost: float
    given: float
    random: float  # mean of many random orders

    @property
    def gain(self) -> float:
        """How many times faster than in the given order."""
        return self.given / self.cost if self.cost else 1.0

    @property
    def gain_over_random(self) -> float:
        """How many times faster than in a random order, on average."""
        return self.random / self.cost if self.cost else 1.0

    def __str__(self) -> str:
        return (
            f"{self.algorithm}, {len(self.hosts)} hosts: predicted {format_seconds(self.cost)}; "
            f"{self.gain:.2f}x faster than the given order, {self.gain_over_random:.2f}x than a random one"
        )


def best_ranking(
    matrix: ProbeMatrix, *, algorithm: str, size: float, base: int, time_limit: float, seed: int = 0
) -> RankOrder:
    """Search the order of the matrix's hosts that makes the collective cheapest, and price the others."""
    name = algorithm_name(algorithm)
    matrix = without_chance(matrix)
    order = rank_order(matrix, name, size=size, base=base, time_limit=time_limit, seed=seed)
    count, rng = len(order), np.random.default_rng(seed)
    tried = np.array([order, range(count), *(rng.permutation(count) for _ in range(RANDOM_ORDERS))], dtype=np.intp)
    prices = cost_model(Prices(matrix), algorithm=name, size=size, base=base)(tried)[0]
    return RankOrder(
        algorithm=name,
        hosts=tuple(matrix.hosts[node] for node in order),
        order=tuple(order),
        cost=float(prices[0]),
        given=float(prices[1]),
        random=float(prices[2:].mean()),
    )
