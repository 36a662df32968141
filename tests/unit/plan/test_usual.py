"""DDP's schedule at its best: the bucket sizes people tune it to, and the one that a closed form picks among them."""

from __future__ import annotations

import pytest
from plan_cases import chain

from dovetail.bench.models import profile_of
from dovetail.network.model import Cluster, Link
from dovetail.plan.buckets import MIB
from dovetail.plan.policies import make_plan
from dovetail.plan.usual import bucketed, usual_plan, usual_plans
from dovetail.simulate.run import simulate

LARGE = chain([(MIB, 1e-3, 2e-3)] * 60)
SMALL = chain([(4_000, 1e-3, 2e-3)] * 3)


def network(*, workers: int = 4, startup: float = 50e-6, bandwidth: float = 62.5e6) -> Cluster:
    return Cluster.uniform(workers=workers, link=Link(startup=startup, bandwidth=bandwidth))


def test_buckets_of_25_5_and_1_mib_are_three_plans() -> None:
    plans = usual_plans(LARGE, network())
    assert plans[0] == make_plan(LARGE, network(), "ddp")
    assert [max(t.nbytes for t in p.transfers) // MIB for p in plans] == [25, 5, 1]
    assert {p.policy for p in plans} == {"ddp"}


def test_sizes_that_make_the_same_buckets_are_one_plan() -> None:
    assert usual_plans(SMALL, network()) == [make_plan(SMALL, network(), "ddp")]


@pytest.mark.parametrize(("startup", "count"), [(0.0, 60), (0.1, 4)])
def test_startups_decide_how_large_buckets_are(startup: float, count: int) -> None:
    assert len(usual_plan(LARGE, network(startup=startup)).transfers) == count


@pytest.mark.parametrize("model", ["resnet50", "vgg19"])
@pytest.mark.parametrize("bandwidth", [62.5e6, 1.25e9])
@pytest.mark.parametrize("startup", [50e-6, 1e-3])
def test_the_closed_form_picks_what_the_simulator_would(model: str, bandwidth: float, startup: float) -> None:
    profile = profile_of(model, compute=0.3, scale=1 / 16)
    cluster = network(bandwidth=bandwidth, startup=startup)
    picked = simulate(profile, usual_plan(profile, cluster), cluster, quick=True).iteration_time
    assert picked <= 1.01 * min(
        simulate(profile, plan, cluster, quick=True).iteration_time for plan in usual_plans(profile, cluster)
    )


def test_a_size_that_is_given_counts_for_the_first_bucket_too() -> None:
    plan = bucketed(LARGE, network(), nbytes=5 * MIB)
    assert (plan.aggregation, plan.barrier) == ("ring", True)
    assert {t.nbytes for t in plan.transfers} == {5 * MIB}
