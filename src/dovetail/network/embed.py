"""ProbeEmbed: nodes as points whose distances explain the probes, which takes out much of the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dovetail.errors import BadInput
from dovetail.network.collective import Floats
from dovetail.network.matrix import ProbeMatrix

STEPS = 400
STARTS = 3
RATE = 0.1  # Adam's first step, in units of the typical distance between points; it falls to 0
BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """Points (and the fixed cost of each node), in units in which the mean probe is 1."""

    points: Floats
    heights: Floats
    alpha: float
    stress: float  # root of the mean squared difference to the probes
    scale: float  # seconds (or whatever the probes were in) per unit

    def distances(self) -> Floats:
        """The denoised matrix, in the unit of the probes."""
        between = _lengths(self.points) ** self.alpha + self.heights[:, None] + self.heights[None]
        np.fill_diagonal(between, 0.0)
        return between * self.scale


def embed(
    probes: ArrayLike, *, alpha: float = 2.0, dimensions: int = 2, heights: bool = False, seed: int = 0
) -> Embedding:
    """Minimise the sum over pairs of (|v_i - v_j|^alpha [+ h_i + h_j] - p_ij)^2 with Adam; repeatable by `seed`.

    p_ij are the probes without outliers (`without_outliers`): one probe that met a full queue must not bend the map.
    """
    wanted = without_outliers(_checked(probes))
    if not 1 <= alpha <= 2:
        raise BadInput(f"alpha is {alpha}; give a number from 1 to 2")
    if dimensions < 1:
        raise BadInput(f"{dimensions} dimensions; give 1 or more")
    pairs = ~np.eye(len(wanted), dtype=bool)
    scale = float(wanted[pairs].mean()) if len(wanted) > 1 else 1.0
    scale = scale or 1.0  # all probes 0: any scale will do
    rng = np.random.default_rng(seed)
    found = [
        _descend(wanted / scale, rng.normal(scale=0.5, size=(len(wanted), dimensions)), alpha, heights)
        for _ in range(STARTS)
    ]
    points, fixed, stress = min(found, key=lambda result: result[2])
    return Embedding(points, fixed, alpha, stress, scale)


def _checked(probes: ArrayLike) -> Floats:
    values = np.array(probes, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) == 0:
        raise BadInput(f"probes of shape {values.shape} are not an N x N matrix")
    np.fill_diagonal(values, 0.0)
    if not (np.isfinite(values).all() and (values >= 0).all()):
        i, j = (int(k) for k in np.argwhere(~(np.isfinite(values) & (values >= 0)))[0])
        raise BadInput(f"the probe between nodes {i} and {j} is {values[i, j]}; measure that pair again")
    return np.maximum(values, values.T)


def without_outliers(probes: Floats) -> Floats:
    """Each probe, but no longer than the second shortest detour over another node.

    No direct way is longer than a detour; a queue that one probe met makes it look so. The second shortest, because
    one reading that is too short must not pull all others down.
    """
    count = len(probes)
    capped = probes.copy()
    if count < 4:
        return capped
    itself = np.diag(np.full(count, np.inf))
    for i in range(count):
        detours = probes[i][None] + probes + itself  # row j: i -> k -> j, for every k but j
        detours[:, i] = np.inf
        capped[i] = np.minimum(probes[i], np.partition(detours, 1, axis=1)[:, 1])
    np.fill_diagonal(capped, 0.0)
    return capped


def _lengths(points: Floats) -> Floats:
    square = (points**2).sum(axis=1)
    apart = square[:, None] + square[None] - 2 * points @ points.T
    # Never quite 0: below alpha 2 the slope at 0 is infinite.
    return np.asarray(np.sqrt(np.maximum(apart, 0.0) + 1e-12))


def _descend(wanted: Floats, points: Floats, alpha: float, with_heights: bool) -> tuple[Floats, Floats, float]:
    count = len(wanted)
    fixed = np.zeros(count)
    off = 1.0 - np.eye(count)
    mean, square = np.zeros((count, points.shape[1] + 1)), np.zeros((count, points.shape[1] + 1))
    for step in range(1, STEPS + 1):
        lengths = _lengths(points)
        wrong = (lengths**alpha + fixed[:, None] + fixed[None] - wanted) * off
        pull = 2 * alpha * wrong * lengths ** (alpha - 2)
        slope = np.column_stack((pull.sum(axis=1)[:, None] * points - pull @ points, 2 * wrong.sum(axis=1)))
        mean = BETA_1 * mean + (1 - BETA_1) * slope
        square = BETA_2 * square + (1 - BETA_2) * slope**2
        rate = RATE * (1 - step / (STEPS + 1))
        move = rate * (mean / (1 - BETA_1**step)) / (np.sqrt(square / (1 - BETA_2**step)) + TINY)
        points = points - move[:, :-1]
        if with_heights:
            fixed = np.maximum(fixed - move[:, -1], 0.0)
    wrong = (_lengths(points) ** alpha + fixed[:, None] + fixed[None] - wanted) * off
    return points, fixed, float(np.sqrt((wrong**2).sum() / max(1, count * (count - 1))))


def affinity_accuracy(distances: ArrayLike, places: Sequence[Sequence[object]]) -> float:
    """PAIA: the share of comparable triplets (a, b, c) in which the one closer to c in truth is measured closer.

    `places` say where each node is, from the widest to the narrowest: (datacenter, row, rack, host).
    """
    measured = np.asarray(distances, dtype=np.float64)
    count = len(places)
    if measured.shape != (count, count):
        raise BadInput(f"{count} places do not fit a matrix of shape {measured.shape}")
    shared = np.array([[_common(a, b) for b in places] for a in places])
    right = total = 0
    for c in range(count):
        others = np.delete(np.arange(count), c)
        depth, length = shared[c, others], measured[c, others]
        nearer = depth[:, None] > depth[None]  # each comparable pair once: a is the one that is truly nearer
        total += int(nearer.sum())
        right += int((nearer & (length[:, None] < length[None])).sum())
    if total == 0:
        raise BadInput("the places do not tell any node nearer than another; give racks, rows or clusters")
    return right / total


def accuracies(matrix: ProbeMatrix, places: Sequence[Sequence[object]]) -> dict[str, tuple[float, float]]:
    """PAIA of what was probed, and of its embedding: by latency, and by bandwidth if there is any."""
    return {
        what: (affinity_accuracy(probes, places), affinity_accuracy(embed(probes).distances(), places))
        for what, probes in zip(("latency", "bandwidth"), matrix.distances(), strict=False)
    }


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    length = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine != theirs:
            break
        length += 1
    return length
