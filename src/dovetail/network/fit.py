"""Timed transfers become a Link: startup and bandwidth by least squares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dovetail.errors import BadInput
from dovetail.network.model import Link

SMALL, LARGE = 64, 4 * 1024 * 1024  # bytes: one shows the startup, the other the bandwidth

Sample = tuple[int, float]  # bytes, seconds


def fit_link(samples: Sequence[Sample]) -> tuple[Link, float]:
    """The link that fits the timings best, and the mean relative distance of a timing from it.

    The middle half of the timings of each size counts, so that a stall does not; the squares are of relative
    distances, so that a large transfer does not outweigh a small one.
    """
    kept = _middle(samples)
    sizes = np.array([nbytes for nbytes, _ in kept], dtype=float)
    times = np.array([seconds for _, seconds in kept])
    if len(set(sizes)) < 2:
        raise BadInput(f"{len(samples)} timings of {len(set(sizes))} sizes; a link is fitted to two sizes or more")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise BadInput("a timing is 0, negative or not a number; time every transfer again")
    typical = np.array([np.median(times[sizes == nbytes]) for nbytes in sizes])
    columns, wanted = np.stack([1 / typical, sizes / typical], axis=1), times / typical
    (startup, per_byte), *_ = np.linalg.lstsq(columns, wanted, rcond=None)
    if startup < 0:  # noise at the small end: the best line through the origin is the nearest link there is
        startup, per_byte = 0.0, (columns[:, 1] @ wanted) / (columns[:, 1] @ columns[:, 1])
    if not per_byte > 0:
        raise BadInput(f"transfers of {sizes.max():.0f} bytes took no longer than those of {sizes.min():.0f} bytes")
    link = Link(startup=float(startup), bandwidth=float(1 / per_byte))
    return link, float(np.abs(columns @ np.array([startup, per_byte]) - wanted).mean())


def _middle(samples: Sequence[Sample]) -> list[Sample]:
    """Per size, the timings between the quartiles."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for nbytes, seconds in samples:
        by_size[nbytes].append(seconds)
    kept: list[Sample] = []
    for nbytes, times in by_size.items():
        cut = len(times) // 4
        kept += [(nbytes, seconds) for seconds in sorted(times)[cut : len(times) - cut]]
    return kept
