"""Spreading work over bins: longest processing time first, at most 4/3 of the optimum."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from dovetail.errors import BadInput
from dovetail.plan.steps import Route


def spread(sizes: Sequence[int], *, bins: int, weights: Sequence[float] | None = None) -> list[int]:
    """Bin of each item so that loads per weight are even; equal inputs give equal outputs on every rank."""
    if bins < 1:
        raise BadInput(f"{bins} bins to spread over; give 1 or more")
    share = list(weights) if weights is not None else [1.0] * bins
    _check_weights(share, bins)
    heap = [(0.0, b) for b in range(bins) if share[b] > 0]
    heapq.heapify(heap)
    result = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, b = heapq.heappop(heap)
        result[item] = b
        heapq.heappush(heap, (load + sizes[item] / share[b], b))
    return result


def assign(chunk_sizes: Sequence[int], routes: Sequence[Route]) -> list[int]:
    """The route of each chunk, so that every route carries about the same number of bytes."""
    return spread(chunk_sizes, bins=len(routes))


def in_turn(weights: Sequence[float], *, count: int) -> list[int]:
    """Indices in proportion to `weights`, spaced evenly: any prefix is in proportion as well as it can be."""
    if count == 0:
        return []
    _check_weights(list(weights), len(weights))
    total = float(sum(weights))
    credit = [0.0] * len(weights)
    turns = []
    for _ in range(count):
        credit = [c + w / total for c, w in zip(credit, weights, strict=True)]
        # Rounded, so that equal weights tie exactly and the first index wins on every machine.
        turn = max(range(len(weights)), key=lambda i: (weights[i] > 0, round(credit[i], 9), -i))
        credit[turn] -= 1.0
        turns.append(turn)
    return turns


def _check_weights(weights: Sequence[float], bins: int) -> None:
    if len(weights) != bins or bins == 0 or min(weights) < 0 or max(weights) <= 0:
        raise BadInput(
            f"weights {list(weights)} do not fit {bins} bins; give one number of 0 or more per bin, not all 0"
        )
