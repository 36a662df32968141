"""What a sender has given away cannot be overtaken; without a backlog everything can, up to a chunk."""

from __future__ import annotations

import pytest
from chains import chain, layerwise

from dovetail.network.model import Cluster, Host, Link
from dovetail.simulate.network import Backlog
from dovetail.simulate.run import simulate

UNIT = 1_000_000  # bytes that take a second
LINK = Link(startup=0.0, bandwidth=float(UNIT))
CLUSTER = Cluster(workers=(Host(name="worker 0", link=LINK),), hubs=(Host(name="hub 0", link=LINK),))
PROFILE = chain([UNIT // 10, 2 * UNIT], forward=[0.5, 0.5], backward=[0.5, 0.5])  # a small urgent layer, a large one


def seconds(*, urgent: bool, backlog: Backlog | None) -> float:
    plan = layerwise(PROFILE, urgent=urgent, aggregation="hub", chunk_bytes=UNIT // 100)
    return simulate(PROFILE, plan, CLUSTER, hub_update_rate=float("inf"), backlog=backlog, full=True).iteration_time


def test_without_a_backlog_only_a_chunk_is_in_the_way() -> None:
    assert seconds(urgent=True, backlog=Backlog()) == pytest.approx(seconds(urgent=True, backlog=None))


def test_the_urgent_layer_waits_behind_what_was_given_away() -> None:
    times = [seconds(urgent=True, backlog=Backlog(per_peer=n)) for n in (0, UNIT // 5, 3 * UNIT)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(seconds(urgent=False, backlog=None)), "a backlog of everything is first come"


def test_a_queue_is_shared_by_the_peers_of_a_port() -> None:
    assert Backlog(per_peer=100, queue=0.5).room(1000.0, 2) == 350.0
    assert Backlog(per_peer=100, queue=0.5).room(1000.0, 0) == 600.0


def test_a_startup_delays_its_own_transfer_only() -> None:
    slow = Link(startup=0.1, bandwidth=float(UNIT))
    cluster = Cluster(workers=(Host(name="worker 0", link=slow),), hubs=(Host(name="hub 0", link=slow),))
    profile = chain([UNIT // 2] * 4, forward=[0.0] * 4, backward=[0.0] * 4)
    plan = layerwise(profile, urgent=False, aggregation="hub", chunk_bytes=UNIT // 2)
    took = simulate(profile, plan, cluster, hub_update_rate=float("inf"), backlog=Backlog(per_peer=UNIT))
    assert took.iteration_time == pytest.approx(2.5 + 0.2), "4 transfers out, the last one back, and 2 startups"
