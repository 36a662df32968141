"""auto: a short list of distinct plans, DDP's always among them, and the best by the simulation it is given."""

from __future__ import annotations

import pytest
from plan_cases import chain

from dovetail.network.model import Cluster, Link
from dovetail.plan.auto import candidates, choose, label
from dovetail.plan.schedule import Plan
from dovetail.timeline import Timeline
from dovetail.trace.graph import Profile

LINK = Link(startup=50e-6, bandwidth=125e6)
NET = chain([(400_000, 1e-3, 2e-3), (4_000, 1e-3, 2e-3), (40_000_000, 2e-3, 4e-3)])
CLUSTERS = {
    "uniform": Cluster.uniform(workers=4, link=LINK),
    "hubs": Cluster.uniform(workers=4, link=LINK, hubs=4),
    "racks": Cluster.racked(racks=2, per_rack=4, link=LINK, oversubscription=4.0),
    "alone": Cluster.uniform(workers=1, link=LINK),
}


def timeline(seconds: float) -> Timeline:
    return Timeline(source="test", policy="", spans=(), boundaries={"worker 0": (0.0, seconds)})


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_candidates_are_few_distinct_and_start_with_ddp(cluster: Cluster) -> None:
    plans = candidates(NET, cluster)
    assert plans[0].policy == "ddp"
    assert 3 <= len(plans) <= 12
    assert len({label(p) for p in plans}) == len(plans)


def test_candidates_differ_in_every_dimension() -> None:
    plans = candidates(NET, CLUSTERS["hubs"])
    assert {"hub", "ring"} <= {p.aggregation for p in plans}
    assert {p.update for p in plans} == {"hub", "worker"}
    assert {t.window for p in plans for t in p.transfers} == {"backward", "forward"}
    assert len({len(p.transfers) for p in plans}) > 3


def test_racks_bring_the_two_level_pattern() -> None:
    assert "two-level" in {p.aggregation for p in candidates(NET, CLUSTERS["racks"])}


def test_a_huge_model_does_not_explode_into_slices() -> None:
    huge = chain([(50_000_000, 1e-3, 2e-3)] * 100)
    assert max(len(p.transfers) for p in candidates(huge, CLUSTERS["uniform"])) < 4000


def test_the_best_of_all_is_taken_and_all_are_told() -> None:
    def simulate(profile: Profile, plan: Plan, cluster: Cluster) -> Timeline:
        return timeline(1.0 if plan.policy == "p3" else 2.0)

    best, tried = choose(NET, CLUSTERS["uniform"], simulate)
    assert best.policy == "p3"
    assert tried[0] == ("p3 / shuffle / update at worker", 1.0)
    assert len(tried) == len(candidates(NET, CLUSTERS["uniform"]))


def test_among_equals_ddp_stays() -> None:
    best, _ = choose(NET, CLUSTERS["uniform"], lambda profile, plan, cluster: timeline(1.0))
    assert best.policy == "ddp"


def test_no_more_is_tried_when_only_computation_is_left() -> None:
    floor = NET.compute_time
    _, tried = choose(NET, CLUSTERS["uniform"], lambda profile, plan, cluster: timeline(floor * 1.001))
    assert len(tried) == 1
