"""What moving a group costs in a cluster, as one startup and one bandwidth: enough to decide, not to predict."""

from __future__ import annotations

import math
from collections import Counter

from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Link
from dovetail.plan.patterns import PATTERNS, unknown

PICOSECONDS = 10**12
WITH_HUBS = ("hub", "rack-hubs")


def one_way(cluster: Cluster, aggregation: str) -> Link:
    """Startup and bandwidth of half a reduction: gradients to where they are summed, or results back."""
    link = cluster.slowest
    workers = max(2, len(cluster.workers))  # a single worker plans as if there were two: its rates stay finite
    rounds, share = _shape(aggregation, workers, cluster)
    bandwidth = link.bandwidth / share
    if aggregation in WITH_HUBS:
        if not cluster.hubs:
            raise BadInput(f"aggregation {aggregation!r} needs a hub in the cluster; add one, or use 'shuffle'")
        inside = sum(h.interfaces * h.link.bandwidth for h in cluster.hubs)
        bandwidth = min(bandwidth, inside / workers)
    crossing = _uplink_seconds_per_byte(cluster, aggregation)
    if crossing > 0:
        bandwidth = min(bandwidth, 1 / crossing)
    return Link(startup=rounds * link.startup, bandwidth=bandwidth)


def both_ways(cluster: Cluster, aggregation: str) -> Link:
    """Startup and bandwidth of a whole reduction; a dedicated hub's two directions overlap, others' share a link."""
    half = one_way(cluster, aggregation)
    ways = 1 if aggregation in WITH_HUBS else 2
    return Link(startup=2 * half.startup, bandwidth=half.bandwidth / ways)


def picoseconds(seconds: float) -> int:
    """Time as a whole number: sums are then exact, so that equal costs compare equal on every rank."""
    return round(seconds * PICOSECONDS)


def _shape(aggregation: str, workers: int, cluster: Cluster) -> tuple[int, float]:
    """Rounds of half a reduction, and the share of the bytes that each worker's link carries in it."""
    share = (workers - 1) / workers
    depth = math.ceil(math.log2(workers))
    shapes = {
        "shuffle": (1, share),
        "hub": (1, 1.0),
        "ring": (workers - 1, share),
        "halving-doubling": (depth, share),
        "tree": (depth, 1.0),
        "bcube": (math.ceil(math.log2(workers) / 2), share),
        "rack-hubs": (2, 1.0),
        "two-level": (2, _two_level_share(cluster)),
    }
    if aggregation not in shapes:
        raise unknown(aggregation, PATTERNS)
    return shapes[aggregation]


def _racks(cluster: Cluster) -> Counter[str]:
    return Counter(h.rack for h in cluster.workers)


def _two_level_share(cluster: Cluster) -> float:
    racks = _racks(cluster)
    inside = max(racks.values())
    return max((inside - 1) / inside + (len(racks) - 1) / len(racks) / inside, 0.5)


def _uplink_seconds_per_byte(cluster: Cluster, aggregation: str) -> float:
    racks = _racks(cluster)
    workers, worst = len(cluster.workers), 0.0
    hub_racks = {h.rack for h in cluster.hubs}
    for rack, uplink in cluster.uplinks.items():
        inside = racks[rack]
        if aggregation == "shuffle":
            crossing = inside * (workers - inside) / workers
        elif aggregation == "hub":
            crossing = float(workers - inside if rack in hub_racks else inside)
        elif aggregation in ("two-level", "rack-hubs"):
            crossing = (len(racks) - 1) / len(racks)
        else:
            crossing = 1.0 if inside < workers else 0.0
        worst = max(worst, crossing / uplink.bandwidth)
    return worst
