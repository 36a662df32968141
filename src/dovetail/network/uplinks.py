"""What racks have between them: a pair's own reading across racks tells who else was probed at that moment."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from dovetail.network.collective import Floats
from dovetail.network.matrix import ProbeMatrix

APART = 1.25  # the thinnest pair within racks over the thickest between them, for racks to be beyond doubt


def without_chance(matrix: ProbeMatrix) -> ProbeMatrix:
    """The matrix in which all pairs of two racks have what is usual between these racks, where racks are beyond doubt.

    A pair within a rack has its links to itself, but pairs of different racks share an uplink with whoever is probed at
    the same time, and how many these are is chance.
    """
    if not matrix.bandwidth:
        return matrix
    bandwidth = np.array(matrix.bandwidth)
    racks = racks_beyond_doubt(bandwidth)
    if racks is None:
        return matrix
    found = bandwidth.copy()
    for one, other in permutations(np.unique(racks), 2):
        pairs = np.ix_(racks == one, racks == other)
        found[pairs] = np.median(bandwidth[pairs])
    return ProbeMatrix.from_arrays(matrix.hosts, np.array(matrix.latency), found)


def racks_beyond_doubt(bandwidth: Floats) -> NDArray[np.intp] | None:
    """A number for each host, equal for those in one rack; None = no racks, or doubt.

    All pairs within racks must be thicker than all pairs between them, by the widest gap at which that holds, and no
    rack may be a single host.
    """
    count = len(bandwidth)
    values = np.sort(bandwidth[~np.eye(count, dtype=bool)])
    if len(values) < 2 or not values[0] > 0 or not np.isfinite(values[-1]):
        return None
    ratios = values[1:] / values[:-1]
    for gap in np.argsort(-ratios, kind="stable"):
        if ratios[gap] < APART:
            break
        near = bandwidth >= values[gap + 1]
        np.fill_diagonal(near, True)
        racks = np.unique(near, axis=0, return_inverse=True)[1].reshape(-1)
        if np.array_equal(near, racks[:, None] == racks[None]) and np.bincount(racks).min() > 1:
            return racks
    return None
