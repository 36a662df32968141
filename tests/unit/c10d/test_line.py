"""Iterations on a process group, predicted: a line of collectives against what a few lines of arithmetic say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.bench.models import profile_of
from dovetail.c10d.line import Line, as_cluster, fitted, iteration_time, line_of
from dovetail.c10d.sequence import LEAST
from dovetail.plan.eager import eager
from dovetail.plan.linkcost import both_ways
from dovetail.plan.policies import make_plan
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.plan.usual import usual_plans
from dovetail.trace.graph import Op, Param, Profile
from dovetail.training.choosing import MOST, group_shortlist

KIB = 1 << 10
LINE = Line(startup=0.01, rate=100 * KIB)
CLUSTER = as_cluster(LINE, 4)


def two_layers(*, first: int, second: int) -> Profile:
    """Forward 1 s + 1 s, backward 2 s + 2 s; the second layer's gradient comes first."""
    return Profile(
        ops=(
            Op("f0", 1.0, reads=("w0",)),
            Op("f1", 1.0, ("f0",), reads=("w1",)),
            Op("b1", 2.0, ("f1",), produces="w1"),
            Op("b0", 2.0, ("b1",), produces="w0"),
        ),
        params=(Param("w0", first), Param("w1", second)),
    )


def whole(profile: Profile, *, barrier: bool) -> Plan:
    params = profile.params
    transfers = tuple(Transfer(REDUCE, ((p.name, 0, p.nbytes),), i) for i, p in enumerate(params))
    return Plan(policy="test", params=params, transfers=transfers, barrier=barrier)


def test_the_cluster_of_a_line_weighs_startups_and_bytes_as_it_does() -> None:
    assert line_of(CLUSTER).startup == pytest.approx(LINE.startup)
    assert line_of(CLUSTER).rate == pytest.approx(LINE.rate)
    assert both_ways(CLUSTER, "shuffle").time(50 * KIB) == pytest.approx(LINE.startup + 2 * 50 * KIB / LINE.rate)


def test_what_a_barrier_exposes_and_an_overlap_hides() -> None:
    # w1 (400 KiB) and w0 (300 KiB) take 8 s and 6 s; they are too large to share a collective.
    profile = two_layers(first=300 * KIB, second=400 * KIB)
    taken = 8 + 6
    # The line starts when w1's gradient is there, 4 s into the iteration.
    exposed = iteration_time(profile, whole(profile, barrier=True), CLUSTER)
    assert exposed == pytest.approx(4 + taken, abs=1e-6)
    # Without a barrier nothing can begin before w0, whose turn is last; then the whole next forward pass is left.
    assert iteration_time(profile, whole(profile, barrier=False), CLUSTER) == pytest.approx(exposed, abs=1e-6)
    # Cut in two, w1 lets a small w0 pass, and the first layer runs under what is left of it.
    cut = two_layers(first=KIB, second=2 * LEAST)
    free, bound = (iteration_time(cut, whole(cut, barrier=b), CLUSTER) for b in (False, True))
    assert bound - free == pytest.approx(1.0, abs=1e-6)


def test_nothing_to_send_takes_as_long_as_computing() -> None:
    profile = two_layers(first=8, second=8)
    free = as_cluster(Line(startup=0.0, rate=1e12), 4)
    assert iteration_time(profile, whole(profile, barrier=False), free) == pytest.approx(6.0, abs=1e-6)


def test_startups_decide_between_one_collective_and_two_halves_of_many() -> None:
    """DeAR's many halves win where startups are cheap, and lose where each costs as much as a megabyte."""
    profile = profile_of("resnet50", compute=0.3, scale=0.1)
    ratios = []
    for startup in (1e-5, 5e-2):
        cluster = as_cluster(Line(startup=startup, rate=80e6), 4)
        dear = eager(make_plan(profile, cluster, "dear", aggregation="shuffle"), profile, cluster)
        p3 = make_plan(profile, cluster, "p3", aggregation="shuffle")
        ratios.append(iteration_time(profile, dear, cluster) / iteration_time(profile, p3, cluster))
    assert ratios[0] < 1.02 < ratios[1]


def test_a_plan_is_split_only_where_that_hides_something() -> None:
    """On a fast group all is reduced under the backward pass, and the halves would only cost more calls."""
    profile = profile_of("resnet50", compute=0.3, scale=0.1)
    fast = as_cluster(Line(startup=5e-3, rate=160e6), 4)
    dear = make_plan(profile, fast, "dear", aggregation="shuffle")
    found = fitted(dear, profile, fast)
    assert {t.kind for t in found.transfers} == {REDUCE}
    assert found.chunk_bytes == 800_000
    assert iteration_time(profile, found, fast) <= iteration_time(profile, eager(dear, profile, fast), fast) / 0.98


def test_the_shortlist_has_ddps_schedule_and_what_is_predicted_to_be_faster() -> None:
    profile = profile_of("vgg19", compute=1.0, scale=0.0625)
    found = group_shortlist(profile, as_cluster(Line(startup=2e-3, rate=80e6), 4))
    assert [c.predicted for c in found] == sorted(c.predicted for c in found)
    assert found[-1].plan.policy == "ddp"
    assert found[0].predicted < 0.9 * found[-1].predicted
    assert len({replace(c.plan, policy="") for c in found}) == MOST


def test_the_shortlist_has_one_schedule_of_ddp_the_one_in_the_best_buckets() -> None:
    profile = profile_of("resnet50", compute=0.3)
    sizes = []
    for rate in (300e6, 80e6):
        cluster = as_cluster(Line(startup=0.02, rate=rate), 4)
        (usual,) = (c for c in group_shortlist(profile, cluster) if c.plan.policy == "ddp")
        every = [fitted(p, profile, cluster) for p in usual_plans(profile, cluster, aggregation="shuffle")]
        assert usual.predicted == min(iteration_time(profile, p, cluster) for p in every)
        sizes.append(len(usual.plan.transfers))
    assert sizes[0] > sizes[1]
