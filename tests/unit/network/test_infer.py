"""The cluster behind a matrix of probes."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import BadInput
from dovetail.network.group import Grouping, group_hosts
from dovetail.network.infer import infer, narrow_between, uplink
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.probe import schedule

RACKS = [[0, 2, 5, 7], [1, 3, 4, 6]]
LINK, UPLINK, PASSES = 60e6, 60e6, 3


def probed(racks: list[list[int]], *, link: float, up: float) -> ProbeMatrix:
    """What probes would read: pairs that cross together share the uplink, and the least of the passes counts."""
    count = sum(map(len, racks))
    rack_of = {node: number for number, members in enumerate(racks) for node in members}
    bandwidth = np.full((count, count), np.inf)
    for pairs in schedule(count, PASSES):
        crossing = [p for p in pairs if rack_of[p[0]] != rack_of[p[1]]]
        for a, b in pairs:
            seen = min(link, up / len(crossing)) if (a, b) in crossing else link
            bandwidth[a, b] = bandwidth[b, a] = min(bandwidth[a, b], seen)
    np.fill_diagonal(bandwidth, 0.0)
    latency = np.full((count, count), 50e-6)
    return ProbeMatrix.from_arrays([f"rank {i}" for i in range(count)], latency, bandwidth)


def test_racks_links_and_uplinks_are_found() -> None:
    matrix = probed(RACKS, link=LINK, up=UPLINK)
    grouping = group_hosts(matrix)
    assert grouping.groups == RACKS
    cluster = infer(matrix, grouping, passes=PASSES)
    assert [host.link.bandwidth for host in cluster.workers] == pytest.approx([LINK] * 8)
    assert {h.rack for i, h in enumerate(cluster.workers) if i in RACKS[1]} == {"rack 1"}
    assert [link.bandwidth for link in cluster.uplinks.values()] == pytest.approx([UPLINK] * 2)


def test_an_uplink_that_is_no_bottleneck_carries_all_its_hosts() -> None:
    matrix = probed(RACKS, link=LINK, up=100 * LINK)
    assert uplink(matrix, RACKS, 0, passes=PASSES) >= 3 * LINK


def test_groups_that_nobody_sees_are_no_racks() -> None:
    matrix = probed([list(range(6))], link=LINK, up=UPLINK)
    cluster = infer(matrix, Grouping(groups=[[0, 1, 2], [3, 4, 5]], clarity=0.1), passes=PASSES, hubs=1)
    assert cluster.uplinks == {}
    assert {host.rack for host in cluster.workers} == {"rack 0"}
    assert cluster.hubs[0].link.bandwidth == pytest.approx(6 * LINK)


def test_only_an_uplink_makes_pairs_across_groups_slow() -> None:
    assert narrow_between(probed(RACKS, link=LINK, up=2 * LINK), RACKS)
    assert not narrow_between(probed(RACKS, link=LINK, up=100 * LINK), RACKS)
    assert not narrow_between(probed(RACKS, link=LINK, up=UPLINK), [list(range(8))])


def test_a_rate_limit_is_part_of_the_links() -> None:
    matrix = probed([list(range(4))], link=LINK, up=UPLINK)
    cluster = infer(matrix, Grouping(groups=[[0, 1, 2, 3]], clarity=0.0), passes=PASSES, rate=1e6)
    assert cluster.slowest.bandwidth == 1e6


def test_latency_alone_is_refused() -> None:
    matrix = ProbeMatrix.from_arrays(["a", "b"], np.ones((2, 2)))
    with pytest.raises(BadInput, match="probe bandwidth"):
        infer(matrix, Grouping(groups=[[0, 1]], clarity=0.0), passes=PASSES)
