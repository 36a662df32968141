"""The pattern that suits a cluster, and the line that says why."""

from __future__ import annotations

from functools import partial

import pytest

from dovetail.network.model import Cluster, Link
from dovetail.plan.choice import choose_pattern
from dovetail.plan.policies import make_plan
from dovetail.simulate.run import simulate as simulate_fully
from dovetail.trace.graph import Op, Param, Profile

NAMES = [f"layer{i}" for i in range(12)]
PROFILE = Profile(
    ops=(
        *(Op(f"read {n}", 1e-3, (), reads=(n,)) for n in NAMES),
        *(Op(f"gradient {n}", 2e-3, (), produces=n) for n in reversed(NAMES)),
    ),
    params=tuple(Param(n, 500_000, 4) for n in NAMES),
    name="twelve",
)
simulate = partial(simulate_fully, iterations=1)
LINK = Link(startup=50e-6, bandwidth=60e6)


def test_hubs_win_where_they_are_given() -> None:
    wide = Link(startup=50e-6, bandwidth=8 * 60e6)
    cluster = Cluster.uniform(workers=8, link=LINK, hubs=1, hub_link=wide)
    assert choose_pattern(PROFILE, cluster, simulate).aggregation == "hub"


def test_the_simplest_wins_on_a_flat_network() -> None:
    choice = choose_pattern(PROFILE, Cluster.uniform(workers=8, link=LINK), simulate)
    assert choice.aggregation == "shuffle"
    assert choice.reason.startswith("shuffle, predicted to move the model in ")


def test_thin_uplinks_make_two_levels() -> None:
    cluster = Cluster.racked(racks=2, per_rack=4, link=LINK, oversubscription=4)
    choice = choose_pattern(PROFILE, cluster, simulate)
    assert choice.aggregation in ("two-level", "halving-doubling")  # in rank order both cross once a rack
    assert (
        choice.simulated[choice.aggregation]
        < 0.7 * simulate(PROFILE, make_plan(PROFILE, cluster, "p3", aggregation="shuffle"), cluster).iteration_time
    )
    assert "in 2 racks whose uplinks carry" in choice.reason


@pytest.mark.parametrize(("oversubscription", "sign"), [(4, ">"), (2, "<=")])
def test_a_hub_in_each_rack_by_the_inequality_or_where_the_simulator_says_better(
    oversubscription: float, sign: str
) -> None:
    cluster = Cluster.racked(racks=2, per_rack=4, link=LINK, oversubscription=oversubscription, hub_per_rack=True)
    known = choose_pattern(PROFILE, cluster, simulate, hub_in_each_rack=True)
    assert known.aggregation == "rack-hubs"
    assert f" {sign} " in known.reason.partition("a hub in each rack")[2]
    unknown = choose_pattern(PROFILE, cluster, simulate)
    assert "rack-hubs" not in unknown.simulated, "nobody knows which hub stands where"


@pytest.mark.parametrize("hubs", [0, 1])
def test_an_update_at_the_aggregator_needs_one_root_a_chunk(hubs: int) -> None:
    cluster = Cluster.uniform(workers=4, link=LINK, hubs=hubs)
    choice = choose_pattern(PROFILE, cluster, simulate, place="hub")
    assert set(choice.simulated) <= {"hub", "shuffle"}
