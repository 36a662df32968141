"""Spreading work over bins: longest processing time first, at most 4/3 of the optimum."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from dovetail.errors import BadInput


def spread(sizes: Sequence[int], *, bins: int, weights: Sequence[float] | None = None) -> list[int]:
    """Bin of each item so that loads per weight are even; equal inputs give equal outputs on every rank."""
    if bins < 1:
        raise BadInput(f"{bins} bins to spread over; give 1 or more")
    share = list(weights) if weights is not None else [1.0] * bins
    if len(share) != bins or min(share) < 0 or max(share) <= 0:
        raise BadInput(f"weights {share} do not fit {bins} bins; give one number of 0 or more per bin, not all 0")
    heap = [(0.0, b) for b in range(bins) if share[b] > 0]
    heapq.heapify(heap)
    result = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, b = heapq.heappop(heap)
        result[item] = b
        heapq.heappush(heap, (load + sizes[item] / share[b], b))
    return result
