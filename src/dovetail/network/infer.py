"""A cluster from probes: what each host's link carries, which hosts share a rack, and what a rack's uplink carries."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from dovetail.errors import BadInput
from dovetail.network.group import CLEAR, Grouping
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.model import Cluster, Host, Link
from dovetail.network.probe import schedule

Groups = Sequence[Sequence[int]]
NARROW = 0.85  # pairs across groups get less than this share of what pairs inside get, where there is an uplink


def infer(matrix: ProbeMatrix, grouping: Grouping, *, passes: int, hubs: int = 0, rate: float = 0.0) -> Cluster:
    """The cluster that explains the probes; `rate` is what each host may send at most (0 = no limit).

    Groups that the probes do not clearly show are no racks. A dedicated hub is not probed: it is taken to serve all
    workers at full speed, one in each rack in turn.
    """
    if not matrix.bandwidth:
        raise BadInput("a matrix of latencies alone does not tell what links carry; probe bandwidth as well")
    count = len(matrix.hosts)
    racks: Groups = grouping.groups if grouping.clarity > CLEAR and len(grouping.groups) > 1 else [range(count)]
    bandwidth, latency = np.array(matrix.bandwidth), np.array(matrix.latency)
    rack_of = {node: number for number, members in enumerate(racks) for node in members}
    others = [[j for j in range(count) if j != i] for i in range(count)]
    limit = rate or float("inf")
    links = [
        Link(
            startup=float(np.median(latency[i, others[i]])) if others[i] else 0.0,
            # A pair is as fast as its slower end, so a host's own link is that of its fastest pair.
            bandwidth=min(limit, float(bandwidth[i, others[i]].max())) if others[i] else min(limit, 1e12),
        )
        for i in range(count)
    ]
    hub = Link(startup=min(link.startup for link in links), bandwidth=sum(link.bandwidth for link in links))
    return Cluster(
        workers=tuple(Host(name=f"worker {i}", link=link, rack=f"rack {rack_of[i]}") for i, link in enumerate(links)),
        hubs=tuple(Host(name=f"hub {i}", link=hub, rack=f"rack {i % len(racks)}") for i in range(hubs)),
        uplinks={
            f"rack {number}": Link(startup=0.0, bandwidth=uplink(matrix, racks, number, passes=passes))
            for number in range(len(racks))
            if len(racks) > 1
        },
    )


def narrow_between(matrix: ProbeMatrix, groups: Groups) -> bool:
    """Whether pairs across the groups clearly get less than pairs inside; groups may also be an accident of noise."""
    group_of = {node: number for number, members in enumerate(groups) for node in members}
    inside: list[float] = []
    across: list[float] = []
    for a in range(len(matrix.hosts)):
        for b in range(a):
            (inside if group_of[a] == group_of[b] else across).append(matrix.bandwidth[a][b])
    return bool(inside and across) and statistics.median(across) < NARROW * statistics.median(inside)


def uplink(matrix: ProbeMatrix, racks: Groups, number: int, *, passes: int) -> float:
    """Bytes per second that a rack's way out carries at least.

    A pair keeps the least of its readings, taken when the most other pairs crossed beside it: so many times that is
    what all of them had together.
    """
    inside = set(racks[number])
    beside: dict[tuple[int, int], int] = {}
    for pairs in schedule(len(matrix.hosts), passes):
        crossing = [pair for pair in pairs if (pair[0] in inside) != (pair[1] in inside)]
        for pair in crossing:
            beside[pair] = max(beside.get(pair, 0), len(crossing))
    return statistics.median(matrix.bandwidth[a][b] * most for (a, b), most in beside.items())
