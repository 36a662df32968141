"""Policies as named lists of passes: each gives a valid plan, alone and without any of its parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import chain, random_cluster, random_profile, seeds

from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Link
from dovetail.plan.base import name_of, per_parameter
from dovetail.plan.batcher import batcher
from dovetail.plan.buckets import buckets
from dovetail.plan.bulk import barrier, layerwise
from dovetail.plan.dear import dear
from dovetail.plan.first_use import first_use
from dovetail.plan.ibatch import ibatch_push
from dovetail.plan.patterns import PATTERNS
from dovetail.plan.policies import make_plan, plan_for_training, policies, register_policy, run_passes
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, REDUCE, Plan
from dovetail.plan.slices import slice_transfers, slices
from dovetail.plan.sparsify import sparsify
from dovetail.plan.tac import tac
from dovetail.plan.verify import check_fits
from dovetail.plan.windows import windows
from dovetail.trace.graph import Op, Param, Profile

CLUSTER = Cluster.uniform(workers=4, link=Link(startup=50e-6, bandwidth=125e6))
NET = chain([(400_000, 1e-3, 2e-3), (4_000, 1e-3, 2e-3), (4_000_000, 2e-3, 4e-3)])
NAMES = list(policies())


@pytest.mark.parametrize(
    ("policy", "workers", "hubs", "more", "pattern"),
    [
        ("p3", 4, 0, {}, "ring"),
        ("p3", 2, 0, {}, "shuffle"),
        ("p3", 4, 1, {}, "hub"),
        ("p3", 4, 0, {"update": "hub"}, "shuffle"),
        ("p3", 4, 0, {"aggregation": "tree"}, "tree"),
        ("ibatch", 4, 0, {}, "ring"),
        ("dear", 4, 0, {}, "ring"),
        ("dear", 2, 0, {}, "shuffle"),
    ],
)
def test_ranks_sum_in_a_ring_where_nothing_speaks_against_it(
    policy: str, workers: int, hubs: int, more: dict[str, str], pattern: str
) -> None:
    cluster = Cluster.uniform(workers=workers, link=Link(startup=50e-6, bandwidth=125e6), hubs=hubs)
    assert plan_for_training(NET, cluster, policy, **more).aggregation == pattern


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone when it ends."""
    monkeypatch.setattr("dovetail.plan.policies._registered", {})


@settings(max_examples=300, deadline=None)
@given(seeds, seeds, st.sampled_from(NAMES))
def test_every_policy_fits_every_model(seed: int, other: int, name: str) -> None:
    profile, cluster = random_profile(seed), random_cluster(other)
    plan = make_plan(profile, cluster, name)
    check_fits(plan, profile)
    assert plan.policy == name
    assert plan.fingerprint == profile.fingerprint
    assert sorted(plan.order) == sorted(p.name for p in profile.params)


@settings(max_examples=300, deadline=None)
@given(seeds, seeds, st.lists(st.sampled_from([batcher, slices, tac, first_use, windows, ibatch_push, dear, barrier])))
def test_passes_combine_in_any_order(seed: int, other: int, steps: list) -> None:
    profile, cluster = random_profile(seed), random_cluster(other)
    check_fits(run_passes(per_parameter(profile), profile, cluster, steps), profile)


@pytest.mark.parametrize("name", NAMES)
def test_each_pass_can_be_left_out(name: str) -> None:
    for left_out in map(name_of, policies()[name].passes):
        check_fits(make_plan(NET, CLUSTER, name, without=(left_out,)), NET)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_inputs_give_the_same_plan(name: str) -> None:
    assert make_plan(NET, CLUSTER, name) == make_plan(NET, CLUSTER, name)


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if "hub" not in p])
def test_any_pattern_goes_with_any_policy(pattern: str) -> None:
    for name in NAMES:
        assert make_plan(NET, CLUSTER, name, aggregation=pattern).aggregation == pattern


def test_leaving_a_pass_out_changes_what_it_did() -> None:
    assert max(t.depth for t in make_plan(NET, CLUSTER, "caramel").transfers) > 1
    assert {t.depth for t in make_plan(NET, CLUSTER, "caramel", without=("depth",)).transfers} == {1}


def test_a_pass_is_named_with_either_dash() -> None:
    for name in ("first-use", "first_use"):
        assert make_plan(NET, CLUSTER, "p3", without=(name,)).order == ["l2", "l1", "l0"]


@pytest.mark.parametrize("startup", [0.0, 1e-4])
def test_an_unshaped_network_is_no_obstacle(startup: float) -> None:
    free = Cluster.uniform(workers=2, link=Link(startup=startup, bandwidth=float("inf")))
    for name in NAMES:
        check_fits(make_plan(NET, free, name), NET)


def test_bulk_is_one_transfer_behind_a_barrier() -> None:
    plan = make_plan(NET, CLUSTER, "bulk")
    assert [(t.kind, t.window, t.nbytes) for t in plan.transfers] == [(REDUCE, FORWARD, NET.nbytes)]
    assert plan.barrier


def test_fifo_goes_layer_by_layer_as_gradients_appear() -> None:
    plan = make_plan(NET, CLUSTER, "fifo")
    assert [t.params for t in plan.transfers] == [("l2",), ("l1",), ("l0",)]
    assert [t.priority for t in plan.transfers] == [0, 1, 2]
    assert not plan.barrier


def test_a_layer_is_what_one_op_reads() -> None:
    ops = (Op("f", 1.0, (), ("w", "b")), Op("gb", 1.0, ("f",), (), "b"), Op("gw", 1.0, ("gb",), (), "w"))
    profile = Profile(ops, (Param("w", 40), Param("b", 4)))
    plan = layerwise(per_parameter(profile), profile, CLUSTER)
    assert [t.parts for t in plan.transfers] == [(("b", 0, 4), ("w", 0, 40))]


def test_ddp_fills_buckets_by_production_the_first_a_small_one() -> None:
    mib = 1024 * 1024
    net = chain([(10 * mib, 1.0, 1.0)] * 8)
    plan = make_plan(net, CLUSTER, "ddp")
    assert [t.params for t in plan.transfers] == [("l7",), ("l6", "l5", "l4"), ("l3", "l2", "l1"), ("l0",)]
    assert plan.barrier
    assert plan.aggregation == "ring"
    with pytest.raises(BadInput, match="buckets of 0 bytes"):
        buckets(plan, net, CLUSTER, max_bytes=0)


def test_p3_slices_inherit_the_priority_of_first_use() -> None:
    plan = make_plan(NET, CLUSTER, "p3")
    assert max(t.nbytes for t in plan.transfers) <= 50_000 * 4
    assert [t.priority for t in plan.transfers] == [0, 0, 1] + [2] * 20
    assert {t.kind for t in plan.transfers} == {REDUCE}


def test_dear_pushes_as_produced_and_pulls_as_used() -> None:
    plan = make_plan(NET, CLUSTER, "dear")
    pushes = [t for t in plan.transfers if t.kind == PUSH]
    pulls = [t for t in plan.transfers if t.kind == PULL]
    assert [n for t in pushes for n in t.params] == ["l2", "l1", "l0"]
    assert [n for t in pulls for n in t.params] == ["l0", "l1", "l2"]
    assert {t.window for t in pushes} == {BACKWARD}
    assert {t.window for t in pulls} == {FORWARD}
    assert max(t.priority for t in pushes) < min(t.priority for t in pulls)


def test_hubs_are_used_where_there_are_any() -> None:
    hubs = Cluster.uniform(workers=4, link=CLUSTER.workers[0].link, hubs=1)
    assert (make_plan(NET, hubs, "p3").aggregation, make_plan(NET, hubs, "p3").update) == ("hub", "hub")
    assert make_plan(NET, hubs, "p3", update="worker").update == "worker"
    assert make_plan(NET, CLUSTER, "p3").aggregation == "shuffle"


@settings(max_examples=500, deadline=None)
@given(seeds, st.integers(1, 50))
def test_slices_keep_every_byte_and_every_element(seed: int, max_bytes: int) -> None:
    profile = random_profile(seed)
    width = {p.name: p.itemsize for p in profile.params}
    plan = batcher(per_parameter(profile), profile, CLUSTER)
    cut = slice_transfers(plan, max_bytes=max_bytes)  # a plan that exists covers every byte once
    for t in cut.transfers:
        assert all(offset % width[name] == 0 for name, offset, _ in t.parts)
        assert t.nbytes <= max_bytes or (len(t.parts) == 1 and t.nbytes <= width[t.params[0]])


@pytest.mark.usefixtures("registry")
def test_sparsify_is_asked_for_by_name() -> None:
    register_policy("tac-sparse", (tac, partial(sparsify, keep=0.05)))
    assert make_plan(NET, CLUSTER, "tac-sparse").keep == 0.05
    assert make_plan(NET, CLUSTER, "tac-sparse", without=("sparsify",)).keep == 1.0
    assert all(make_plan(NET, CLUSTER, name).keep == 1.0 for name in NAMES)


@pytest.mark.usefixtures("registry")
def test_a_users_pass_that_loses_bytes_is_named() -> None:
    def forgetful(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
        return replace(plan, transfers=plan.transfers[1:])

    register_policy("forgetful", (forgetful,))
    with pytest.raises(BadInput, match="pass 'forgetful': the plan never moves 'l2'"):
        make_plan(NET, CLUSTER, "forgetful")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "fast"}, "policy 'fast' is unknown; it is one of bulk, fifo"),
        ({"policy": "auto"}, "policy 'auto' compares plans by simulation"),
        ({"policy": "tac", "without": ("depth",)}, "policy 'tac' has no pass 'depth' to leave out; it has tac"),
        ({"policy": "tac", "aggregation": "star"}, "aggregation 'star' is unknown"),
        ({"policy": "tac", "aggregation": "hub"}, "aggregation 'hub' needs a hub"),
        ({"policy": "tac", "update": "moon"}, "update at 'moon' is unknown"),
    ],
)
def test_wrong_wishes_get_one_clear_line(arguments: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_plan(NET, CLUSTER, **arguments)


@pytest.mark.parametrize("name", ["tac", "auto", ""])
def test_names_of_dovetails_own_cannot_be_taken(name: str) -> None:
    with pytest.raises(BadInput, match="taken by dovetail"):
        register_policy(name, (tac,))
