"""The simulator against hand-computed schedules."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from chains import chain, layerwise

from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.schedule import Plan, Transfer
from dovetail.simulate.core import Rules, Simulation
from dovetail.simulate.folded import FoldedNetwork, fold
from dovetail.simulate.run import simulate
from dovetail.simulate.work import compile_work
from dovetail.timeline import COMPUTE, RECEIVE, SEND, UPDATE, WAIT

UNIT = 1_000_000  # bytes that take a second below
LINK = Link(startup=0.0, bandwidth=float(UNIT))
INSTANT = float("inf")


def one_hub(*, cores: int = 1, workers: int = 1, link: Link = LINK, interfaces: int = 1) -> Cluster:
    hub = Host(name="hub 0", link=link, cores=cores, interfaces=interfaces)
    return Cluster(workers=tuple(Host(name=f"worker {i}", link=link) for i in range(workers)), hubs=(hub,))


@pytest.mark.parametrize(("urgent", "gap"), [(False, 4.0), (True, 2.0)])
def test_p3_figure_4_gap_between_iterations(urgent, gap):
    """3 layers, 1 unit forward and backward each, 2 units of synchronisation each on the worker's link."""
    profile = chain([2 * UNIT] * 3, forward=[1, 1, 1], backward=[1, 1, 1])
    plan = layerwise(profile, urgent=urgent, chunk_bytes=UNIT // 100)
    timeline = simulate(profile, plan, Cluster.uniform(workers=2, link=LINK), hub_update_rate=INSTANT)
    waits = [s.end - s.start for s in timeline.spans if s.lane == WAIT and s.name == "f0" and s.iteration == 2]
    assert waits == [pytest.approx(gap, rel=0.02)]


@pytest.mark.parametrize(("chunk", "units"), [(3 * UNIT, 10.0), (UNIT, 7.0)])
def test_p3_figure_6_whole_and_sliced(chunk, units):
    """Push, update and pull take 1, 3 and 1 units for the three layers; updates of different layers overlap."""
    profile = chain([UNIT, 3 * UNIT, UNIT], forward=[0, 0, 0], backward=[0, 0, 0])
    plan = layerwise(profile, urgent=False, chunk_bytes=chunk, aggregation="hub", update="hub")
    timeline = simulate(profile, plan, one_hub(cores=3), hub_update_rate=float(UNIT))
    assert timeline.iteration_time == pytest.approx(units)


def test_incast_of_three_takes_three_times_as_long():
    profile = chain([UNIT], forward=[0], backward=[0])
    plan = layerwise(profile, urgent=False, aggregation="hub", update="hub", chunk_bytes=UNIT // 50)
    alone = simulate(profile, plan, one_hub(), hub_update_rate=INSTANT, full=True).iteration_time
    three = simulate(profile, plan, one_hub(workers=3), hub_update_rate=INSTANT, full=True).iteration_time
    assert alone == pytest.approx(1.0, rel=0.03)  # push and pull overlap, chunk by chunk
    assert three == pytest.approx(3 * alone, rel=0.05)


def test_interfaces_of_a_hub_work_in_parallel():
    profile = chain([UNIT], forward=[0], backward=[0])
    plan = layerwise(profile, urgent=False, aggregation="hub", update="hub", chunk_bytes=UNIT // 90)
    for full in (True, False):
        cluster = one_hub(workers=3, interfaces=3)
        took = simulate(profile, plan, cluster, hub_update_rate=INSTANT, full=full).iteration_time
        assert took == pytest.approx(1.0, rel=0.06)


def test_a_fast_receiver_takes_slow_senders_at_once():
    profile = chain([UNIT], forward=[0], backward=[0])
    plan = layerwise(profile, urgent=False, aggregation="hub", update="hub", chunk_bytes=UNIT // 50)
    fast = Host(name="hub 0", link=Link(startup=0.0, bandwidth=4.0 * UNIT))
    cluster = Cluster(workers=one_hub(workers=4).workers, hubs=(fast,))
    assert simulate(profile, plan, cluster, hub_update_rate=INSTANT, full=True).iteration_time == pytest.approx(
        1.0, rel=0.05
    )


def test_chunks_pipeline_through_an_uplink():
    link = Link(startup=0.0, bandwidth=float(UNIT))
    cluster = Cluster.racked(racks=2, per_rack=1, link=link, oversubscription=1)
    profile = chain([2 * UNIT], forward=[0], backward=[0])
    plan = layerwise(profile, urgent=False, chunk_bytes=UNIT // 50)
    through = simulate(profile, plan, cluster, hub_update_rate=INSTANT).iteration_time
    assert through == pytest.approx(2.0, rel=0.05)
    tight = Cluster(
        workers=cluster.workers, uplinks=dict.fromkeys(cluster.uplinks, Link(startup=0, bandwidth=UNIT / 4))
    )
    assert simulate(profile, plan, tight, hub_update_rate=INSTANT).iteration_time == pytest.approx(8.0, rel=0.05)


def test_startup_is_paid_once_per_transfer_and_round():
    link = Link(startup=0.5, bandwidth=float(UNIT))
    profile = chain([UNIT, UNIT], forward=[0, 0], backward=[0, 0])
    cluster = one_hub(link=link)
    settings = {"aggregation": "hub", "update": "hub", "chunk_bytes": UNIT // 100}
    two = simulate(profile, layerwise(profile, urgent=False, **settings), cluster, hub_update_rate=INSTANT)
    parts = (("p1", 0, UNIT), ("p0", 0, UNIT))
    batch = Plan(policy="one", params=profile.params, transfers=(Transfer("reduce", parts),), **settings)
    one = simulate(profile, batch, cluster, hub_update_rate=INSTANT)
    # The way back starts 0.5 later and overlaps the way there: 2 units of bytes and the startups of one direction.
    assert one.iteration_time == pytest.approx(2.0 + 2 * 0.5, rel=0.02)
    assert two.iteration_time == pytest.approx(2.0 + 3 * 0.5, rel=0.02)


def test_barrier_waits_for_everything_and_first_use_does_not():
    profile = chain([UNIT // 10, 2 * UNIT], forward=[1, 1], backward=[0.5, 0.5])
    cluster = Cluster.uniform(workers=2, link=LINK)
    free = layerwise(profile, urgent=True, chunk_bytes=UNIT // 100)
    held = replace(free, barrier=True)
    first = simulate(profile, free, cluster, hub_update_rate=INSTANT).iteration_time
    second = simulate(profile, held, cluster, hub_update_rate=INSTANT).iteration_time
    assert second == pytest.approx(3.0 + 2.1 - 0.5, rel=0.03)  # only backward of layer 0 overlaps
    assert first == pytest.approx(second - 1.0, rel=0.03)  # forward of layer 0 overlaps too


def test_forward_window_starts_after_the_backward_pass():
    profile = chain([UNIT, UNIT], forward=[1, 1], backward=[1, 1])
    transfers = tuple(Transfer("reduce", ((f"p{i}", 0, UNIT),), i, window="forward") for i in (1, 0))
    plan = Plan(policy="late", params=profile.params, transfers=transfers, chunk_bytes=UNIT // 100)
    timeline = simulate(profile, plan, Cluster.uniform(workers=2, link=LINK), hub_update_rate=INSTANT, full=True)
    ends = timeline.boundaries["worker 0"]
    sent = [s for s in timeline.spans if s.lane == SEND and s.node == "worker 0" and s.iteration == 1]
    assert min(s.start for s in sent) >= ends[1] - 1e-9


@pytest.mark.parametrize("full", [True, False])
def test_a_late_pull_waits_for_the_backward_pass_and_pushes_do_not(full):
    profile = chain([UNIT, UNIT], forward=[1, 1], backward=[1, 2])
    transfers = [Transfer("push", ((f"p{i}", 0, UNIT),), i) for i in (1, 0)]
    transfers += [Transfer("pull", (("p0", 0, UNIT), ("p1", 0, UNIT)), 0, window="forward")]
    plan = Plan(
        policy="x", params=profile.params, transfers=tuple(transfers), aggregation="hub", chunk_bytes=UNIT // 100
    )
    timeline = simulate(profile, plan, one_hub(workers=2), hub_update_rate=INSTANT, full=full)
    ends = timeline.boundaries["worker 0"]
    pushed = [s for s in timeline.spans if s.node == "worker 0" and s.lane == SEND and s.iteration == 1]
    pulled = [s for s in timeline.spans if s.node == "worker 0" and s.lane == RECEIVE and s.iteration == 1]
    assert min(s.start for s in pushed) < ends[1] - 0.5
    assert min(s.start for s in pulled) >= ends[1] - 1e-9


def test_edges_change_the_order_of_computation():
    profile = chain([UNIT], forward=[1], backward=[1])
    extra = type(profile.ops[0])("side", 1.0, ())
    profile = type(profile)((*profile.ops, extra), profile.params)
    base = layerwise(profile, urgent=False)
    moved = replace(base, edges=(("side", "b0"),))
    cluster = Cluster.uniform(workers=2, link=LINK)

    def computed(plan):
        spans = simulate(profile, plan, cluster).spans
        return [s.name for s in spans if s.lane == COMPUTE and s.iteration == 1]

    assert computed(base) == ["f0 .. b0", "side"]
    assert computed(moved) == ["f0 .. b0"]


def test_update_runs_at_the_hub_or_at_the_worker():
    profile = chain([UNIT], forward=[1], backward=[1])
    for place, node in (("hub", "hub 0"), ("worker", "worker 0")):
        plan = layerwise(profile, urgent=False, aggregation="hub", update=place)
        spans = simulate(profile, plan, one_hub(), hub_update_rate=2.0 * UNIT).spans
        assert {s.node for s in spans if s.lane == UPDATE} == {node}


def test_a_straggler_makes_the_others_wait():
    profile = chain([UNIT // 100] * 3, forward=[1, 1, 1], backward=[1, 1, 1])
    plan = layerwise(profile, urgent=True)
    cluster = Cluster.uniform(workers=3, link=LINK)
    even = simulate(profile, plan, cluster)
    slow = simulate(profile, plan, cluster, stragglers={1: 2.0})
    assert slow.iteration_time == pytest.approx(2 * even.iteration_time, rel=0.02)
    assert slow.straggler == pytest.approx(0.5, abs=0.02)
    assert set(slow.boundaries) == {"worker 0", "worker 1", "worker 2"}


def test_jitter_follows_the_seed():
    profile = chain([UNIT // 100] * 3, forward=[1, 1, 1], backward=[1, 1, 1])
    plan = layerwise(profile, urgent=True)
    cluster = Cluster.uniform(workers=3, link=LINK)
    first, again, other = (simulate(profile, plan, cluster, jitter=0.1, seed=s) for s in (1, 1, 2))
    assert first.spans == again.spans
    assert first.iteration_times != other.iteration_times


def test_one_worker_has_nothing_to_send():
    profile = chain([UNIT], forward=[1], backward=[1])
    timeline = simulate(profile, layerwise(profile, urgent=False), Cluster.uniform(workers=1, link=LINK))
    assert timeline.communication_time == 0
    assert timeline.iteration_time == pytest.approx(2.0, rel=0.01)


def test_sparse_gradients_carry_an_index_with_each_value():
    profile = chain([UNIT], forward=[0], backward=[0])
    plan = layerwise(profile, urgent=False, kinds=("push", "pull"), aggregation="hub", keep=0.1)
    dense = layerwise(profile, urgent=False, kinds=("push", "pull"), aggregation="hub")
    sparse_time, dense_time = (
        simulate(profile, p, one_hub(), hub_update_rate=INSTANT).iteration_time for p in (plan, dense)
    )
    assert dense_time == pytest.approx(2.0, rel=0.02)
    assert sparse_time == pytest.approx(1.2, rel=0.02)


@pytest.mark.parametrize("aggregation", ["ring", "shuffle"])
def test_workers_give_what_each_of_them_kept_to_all(aggregation):
    profile = chain([UNIT], forward=[0], backward=[0])
    cluster = Cluster.uniform(workers=4, link=Link(startup=0.0, bandwidth=LINK.bandwidth))
    sparse, dense = (
        simulate(profile, layerwise(profile, urgent=False, aggregation=aggregation, keep=keep), cluster).iteration_time
        for keep in (0.01, 1.0)
    )
    # Every worker hears 3 x 2 x 0.01 gradients, and 2 x 3/4 where they are summed.
    assert sparse / dense == pytest.approx(0.06 / 1.5, rel=0.1)


def cost(transfers: int) -> int:
    """Events of two iterations with that many transfers."""
    profile = chain([1000] * transfers, forward=[1e-5] * transfers, backward=[1e-5] * transfers)
    plan = layerwise(profile, urgent=True)
    work = compile_work(profile, plan, quantum=plan.chunk_bytes)
    cluster = Cluster.uniform(workers=512, link=Link(startup=0.0, bandwidth=1e8))
    folded = fold(cluster, "shuffle")
    assert folded is not None
    rules = Rules(
        iterations=2,
        update_at_worker=True,
        update_rate=1e9,
        chunk_bytes=plan.chunk_bytes,
        sent_share=1.0,
        returned_share=1.0,
        pace=[[1.0, 1.0]],
    )
    simulation = Simulation(work, FoldedNetwork(work, cluster, folded, plan.chunk_bytes), rules)
    simulation.run()
    return simulation.cost


def test_cost_grows_in_proportion_to_the_transfers():
    counts = [cost(n) for n in (100, 200, 400, 800)]
    assert all(after < 2.1 * before for before, after in pairwise(counts))


def test_512_workers_take_under_two_seconds():
    sizes = [620_000] * 161
    profile = chain(sizes, forward=[1e-3] * 161, backward=[2e-3] * 161)
    cluster = Cluster.uniform(workers=512, link=Link(startup=5e-5, bandwidth=1.25e9))
    for aggregation in ("shuffle", "ring"):
        started = time.process_time()
        timeline = simulate(profile, layerwise(profile, urgent=True, aggregation=aggregation), cluster, iterations=1)
        assert time.process_time() - started < 2.0
        assert timeline.iteration_time > profile.compute_time


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "0 iterations"),
        ({"jitter": -1.0}, "jitter is -1.0"),
        ({"stragglers": {9: 2.0}}, "straggler 9: the cluster has workers 0..1"),
        ({"stragglers": {1: 0.0}}, "straggler 1 is 0.0 times slower"),
        ({"hub_update_rate": 0.0}, "the update rate is 0.0"),
    ],
)
def test_bad_settings_are_named(settings, message):
    profile = chain([UNIT], forward=[1], backward=[1])
    with pytest.raises(BadInput, match=message):
        simulate(profile, layerwise(profile, urgent=False), Cluster.uniform(workers=2, link=LINK), **settings)


def test_a_plan_for_another_model_is_refused():
    profile, other = (chain([n], forward=[1], backward=[1]) for n in (UNIT, 2 * UNIT))
    with pytest.raises(BadInput, match="another model"):
        simulate(profile, layerwise(other, urgent=False), Cluster.uniform(workers=2, link=LINK))
