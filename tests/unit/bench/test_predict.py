"""Predictions of bench rows: the cluster is the measured network, and each system is simulated as it runs."""

from __future__ import annotations

import pytest

from dovetail.bench.allreduce import best_pattern
from dovetail.bench.bounds import Network
from dovetail.bench.models import profile_of
from dovetail.bench.predict import cluster_of, predicted, settled
from dovetail.bench.systems import chosen

FLAT = Network(racks=(0,) * 4, rate=1e8, hub_rate=4e8, hub_racks=(0,))
RACKS = Network(racks=(0, 1, 0, 1), rate=1e8, hub_rate=4e8, hub_racks=(0, 1), uplink=5e7)
PROFILE = profile_of("alexnet", compute=0.5, scale=0.05)


def test_the_cluster_has_the_rates_and_only_the_hubs_in_use() -> None:
    flat = cluster_of(FLAT, "shuffle", startup=1e-4)
    assert (len(flat.workers), flat.hubs, flat.uplinks) == (4, (), {})
    assert (flat.slowest.bandwidth, flat.slowest.startup) == (1e8, 1e-4)
    assert [hub.link.bandwidth for hub in cluster_of(FLAT, "hub", startup=0.0).hubs] == [4e8]
    racked = cluster_of(RACKS, "rack-hubs", startup=0.0)
    assert [host.rack for host in (*racked.workers, *racked.hubs)] == [f"rack {i}" for i in (0, 1, 0, 1, 0, 1)]
    assert {rack: link.bandwidth for rack, link in racked.uplinks.items()} == {"rack 0": 5e7, "rack 1": 5e7}


@pytest.mark.parametrize("name", ["sharded", "ring", "halving-doubling", "tree", "bcube", "hub"])
def test_every_pattern_is_predicted_between_computing_alone_and_doing_nothing_at_once(name: str) -> None:
    (system,) = chosen([name], ["tac", "bulk"])
    cluster = cluster_of(FLAT, system.pattern, startup=1e-4)
    best, worst = (predicted(system, policy, PROFILE, cluster) for policy in ("tac", "bulk"))
    assert PROFILE.compute_time <= best < worst


@pytest.mark.parametrize("name", ["two-level", "rack-hubs"])
def test_racks_are_predicted_too(name: str) -> None:
    (system,) = chosen([name], ["p3"])
    cluster = cluster_of(RACKS, system.pattern, startup=1e-4)
    assert predicted(system, "p3", PROFILE, cluster) >= PROFILE.compute_time


def test_a_smaller_ddp_bucket_overlaps_more_where_startups_are_free() -> None:
    (ddp,) = chosen(["ddp"])
    cluster = cluster_of(FLAT, ddp.pattern, startup=0.0)
    assert predicted(ddp, "1", PROFILE, cluster) < predicted(ddp, "25", PROFILE, cluster)


def test_auto_takes_two_levels_where_uplinks_are_thin_and_a_direct_pattern_where_nothing_is() -> None:
    assert best_pattern(FLAT, 10**8) == "shuffle"
    thin = Network(racks=(0, 0, 0, 0, 1, 1, 1, 1), rate=1e8, uplink=2.5e7)
    assert best_pattern(thin, 10**8) == "two-level"


@pytest.mark.parametrize(("load", "least", "most"), [(0.0, 0.999, 1.001), (0.6, 1.09, 1.15), (9.0, 8.999, 9.001)])
def test_computation_is_slowed_for_as_long_as_links_are_busy(load: float, least: float, most: float) -> None:
    found = settled(lambda compute: max(compute, load), floor=1.0, paced=1.2, load=load)
    assert least <= found <= most
