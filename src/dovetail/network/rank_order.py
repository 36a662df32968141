"""The order of ranks in which an unmodified collective is cheapest on these nodes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dovetail.network.collective import DEFAULT_SIZE, Prices, algorithm_name, cost_model
from dovetail.network.rank_search import EXHAUSTIVE, best_of_all, best_rotation, local_search
from dovetail.network.rank_solver import improve
from dovetail.network.tour import shortest_ring

# Beyond these CP-SAT found nothing better than the search in any time worth waiting for.
RING_SOLVER_NODES, SOLVER_NODES = 100, 16


def rank_order(
    matrix: ArrayLike | Any,
    algorithm: str = "ring",
    *,
    size: float = DEFAULT_SIZE,
    base: int = 4,
    time_limit: float = 10.0,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> list[int]:
    """The permutation that makes `algorithm` cheap: rank r belongs on node `result[r]`; never worse than as given.

    `matrix` is N x N seconds, a pair (latency, bandwidth) of N x N, or a ProbeMatrix; `size` is the buffer in bytes.
    """
    prices, name = Prices(matrix), algorithm_name(algorithm)
    count, started = prices.count, clock()
    model = cost_model(prices, algorithm=name, size=size, base=base)
    if count <= EXHAUSTIVE:
        return best_of_all(model, count)
    cost = prices.at(size)
    symmetric = bool(np.array_equal(cost, cost.T))
    ring_only = name == "ring" and symmetric
    given = list(range(count))

    def price(order: list[int]) -> float:
        return float(model(np.array([order], dtype=np.intp))[0][0])

    def before(share: float) -> Callable[[], bool]:
        return lambda: clock() - started > share * time_limit

    # Near nodes end up at near ranks in a short ring, which is a good start for the other algorithms too.
    tour = shortest_ring(
        (cost + cost.T) / 2,
        given,
        rng=random.Random(seed),
        kicks=(20 if ring_only else 2) * count,
        expired=before(0.8 if ring_only else 0.2),
    )
    found = [given, tour, tour[::-1]]
    if not ring_only:
        # The tour keeps racks whole; where it begins decides whether they fill whole blocks of a cube or tree.
        found += [best_rotation(model, tour), best_rotation(model, tour[::-1])]
        rng = np.random.default_rng(seed)
        for start, share in ((min(found, key=price), 0.6), (given, 0.8)):
            found.append(local_search(model, start, rng=rng, kicks=20, expired=before(share)))

    best = min(found, key=price)
    left = time_limit - (clock() - started)
    if count <= (RING_SOLVER_NODES if name.startswith("ring") else SOLVER_NODES) and left > 0:
        verdict = improve(prices, best, algorithm=name, size=size, base=base, time_limit=left, seed=seed)
        best = min([best, verdict.order or best], key=price)
    if name.startswith("ring"):  # a ring has no first rank: leave the first host where it was
        first = best.index(0)
        best = best[first:] + best[:first]
    return best
