"""The index arithmetic that collectives share: even runs, cubes and binary trees over 0..n-1."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dovetail.errors import BadInput


def cut(nodes: Sequence[int], pieces: int) -> list[list[int]]:
    """`nodes` in order, as `pieces` runs whose lengths differ by at most one; the longer ones come first."""
    if not 1 <= pieces <= len(nodes):
        raise BadInput(f"{len(nodes)} nodes cannot form {pieces} groups; give 1 to {len(nodes)}")
    size, more = divmod(len(nodes), pieces)
    starts = [i * size + min(i, more) for i in range(pieces + 1)]
    return [list(nodes[a:b]) for a, b in itertools.pairwise(starts)]


def cube(count: int, base: int) -> tuple[int, int]:
    """The base to use (never more than `count`) and the largest power of it within `count` nodes."""
    if base < 2:
        raise BadInput(f"bcube of base {base}; give 2 or more")
    base = min(base, max(2, count))
    size = 1
    while size * base <= count:
        size *= base
    return base, size


def midpoint_parents(count: int) -> list[int | None]:
    """Parents in the binary tree over 0..count-1 whose root is the midpoint, and so on in each half."""
    parents: list[int | None] = [None] * count
    ranges: list[tuple[int, int, int | None]] = [(0, count - 1, None)]
    while ranges:
        first, last, parent = ranges.pop()
        if first <= last:
            middle = (first + last) // 2
            parents[middle] = parent
            ranges += [(first, middle - 1, middle), (middle + 1, last, middle)]
    return parents
