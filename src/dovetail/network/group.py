"""Groups for two-level aggregation: near nodes together, in groups of about equal size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from k_means_constrained import KMeansConstrained
from numpy.typing import ArrayLike

from dovetail.errors import BadInput
from dovetail.network.collective import Floats
from dovetail.network.embed import embed, without_outliers
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.shape import cut

RUNS = 10
FEW_RUNS = 3  # while the number of groups is still open
DIMENSIONS = (2, 8)
CLEAR = 0.5  # clarity above it means that the nodes themselves show how many groups there are


def usual_count(nodes: int) -> int:
    """round(sqrt(n)): where a global master's n/k + k messages are fewest."""
    return max(1, round(math.sqrt(nodes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Groups of nodes, and how clear they are in the probes: from -1 to 1."""

    groups: list[list[int]]
    clarity: float


def find_groups(
    probes: ArrayLike, *, count: int | None = None, elasticity: float = 1.5, alpha: float = 2.0, seed: int = 0
) -> Grouping:
    """Embed the probes and group the points; of several numbers of dimensions, the one with the clearest groups.

    Racks that are equally far from each other need about as many dimensions as there are racks.
    """
    capped = without_outliers(np.asarray(probes, dtype=np.float64))
    found = []
    for dimensions in DIMENSIONS:
        if dimensions == DIMENSIONS[0] or dimensions < len(capped):
            points = embed(probes, alpha=alpha, dimensions=dimensions, seed=seed).points
            found.append(group(points, distances=capped, count=count, elasticity=elasticity, seed=seed))
    return max(found, key=lambda grouping: grouping.clarity)


def group_hosts(matrix: ProbeMatrix, *, count: int | None = None, elasticity: float = 1.5, seed: int = 0) -> Grouping:
    """Groups by latency or by the inverse of bandwidth, whichever shows them more clearly.

    Latency knows the place of a host better; a thin link between racks without a delay shows in bandwidth alone.
    """
    found = [find_groups(d, count=count, elasticity=elasticity, seed=seed) for d in matrix.distances()]
    return max(found, key=lambda grouping: grouping.clarity)


def group(
    points: Floats,
    *,
    distances: Floats | None = None,
    count: int | None = None,
    elasticity: float = 1.5,
    seed: int = 0,
) -> Grouping:
    """Nodes in `count` groups of at least (n / count) / elasticity nodes, by constrained k-means.

    Without `count` it is round(sqrt(n)), unless the distances (default: of the points) clearly show another number
    within a factor of 2 of it.
    """
    nodes = len(points)
    if not 1 <= elasticity <= 2:
        raise BadInput(f"elasticity is {elasticity}; give a number from 1 (equal sizes) to 2")
    if count is not None and not 1 <= count <= nodes:
        raise BadInput(f"{nodes} nodes cannot form {count} groups; give 1 to {nodes}")
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1) if distances is None else distances
    usual, wide = usual_count(nodes), math.sqrt(nodes)
    counts = {usual} if count is None else {count}
    if count is None and nodes >= 4:
        counts |= set(range(max(2, math.ceil(wide / 2)), min(nodes - 1, int(wide * 2)) + 1))
    runs = FEW_RUNS if len(counts) > 1 else RUNS
    tried = {k: _labels(points, k, elasticity, seed, runs=runs) for k in sorted(counts)}
    clarity = {k: silhouette(apart, labels) for k, labels in tried.items()}
    clearest = max(tried, key=lambda k: (round(clarity[k], 6), -abs(k - usual)))
    chosen = clearest if clarity[clearest] > CLEAR or count is not None else usual
    labels = tried[chosen] if runs == RUNS else _labels(points, chosen, elasticity, seed, runs=RUNS)
    return Grouping(groups=_as_groups(labels), clarity=silhouette(apart, labels))


def _labels(points: Floats, count: int, elasticity: float, seed: int, *, runs: int) -> list[int]:
    """Of several runs, the one with the most even sizes, then with the least inertia."""
    nodes = len(points)
    if count == 1:
        return [0] * nodes
    least = max(1, math.floor(nodes / count / elasticity + 1e-9))
    best: tuple[tuple[float, float], list[int]] | None = None
    for run in range(runs):
        fit = KMeansConstrained(n_clusters=count, size_min=least, init="k-means++", n_init=1, random_state=seed + run)
        labels = [int(label) for label in fit.fit_predict(points)]
        rank = (float(np.var(np.bincount(labels, minlength=count))), round(float(fit.inertia_), 12))
        if best is None or rank < best[0]:
            best = (rank, labels)
    assert best is not None, "there is at least 1 run"
    return best[1]


def _as_groups(labels: list[int]) -> list[list[int]]:
    """Groups in the order of their first members, so that equal partitions look equal."""
    found: dict[int, list[int]] = {}
    for node, label in enumerate(labels):
        found.setdefault(label, []).append(node)
    return list(found.values())


def silhouette(distances: Floats, labels: list[int]) -> float:
    """How clear a grouping is: the mean of (b - a) / max(a, b), a to one's own group, b to the next one.

    What all pairs have in common (the time in the hosts themselves) is taken off first; then near pairs differ by
    noise alone, so that the divisor is never less than the mean distance.
    """
    members = np.array(labels)[:, None] == np.unique(labels)[None]
    if members.shape[1] == 1 or len(labels) < 3:
        return 0.0
    off = ~np.eye(len(labels), dtype=bool)
    apart = np.where(off, np.maximum(distances - np.quantile(distances[off], 0.01), 0.0), 0.0)
    sizes = members.sum(axis=0)
    sums = apart @ members
    own_size = (members * sizes).sum(axis=1)
    own = (sums * members).sum(axis=1) / np.maximum(own_size - 1, 1)
    following = np.where(members, np.inf, sums / sizes).min(axis=1)
    largest = np.maximum(np.maximum(own, following), max(float(apart[off].mean()), 1e-300))
    return float(np.where(own_size == 1, 0.0, (following - own) / largest).mean())


def balanced_random(nodes: int, *, count: int | None = None, seed: int = 0) -> list[list[int]]:
    """The baseline: groups of equal size without regard to distance."""
    order = np.random.default_rng(seed).permutation(nodes).tolist()
    return [sorted(piece) for piece in cut(order, count or usual_count(nodes))]
