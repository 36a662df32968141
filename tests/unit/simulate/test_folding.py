"""Folding equal workers into one changes the cost of a simulation, not its outcome."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from chains import chain, layerwise

from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.schedule import Plan, Transfer
from dovetail.simulate.folded import _closed_form, _racked_form, derive, fold
from dovetail.simulate.run import simulate

LINK = Link(startup=5e-5, bandwidth=2.5e8)


def model(seed: int):
    chance = random.Random(seed)
    sizes = [round(10 ** chance.uniform(3, 6.7)) for _ in range(20)]
    total = sum(sizes) * 8 / 1e9
    times = [total * chance.uniform(0.01, 0.05) for _ in sizes]
    return chain(sizes, forward=times, backward=[2 * t for t in times])


def in_one(profile):
    parts = tuple((p.name, 0, p.nbytes) for p in reversed(profile.params))
    transfers = (Transfer("reduce", parts, window="forward"),)
    return Plan(policy="bulk", params=profile.params, transfers=transfers, barrier=True)


@pytest.mark.parametrize("aggregation", ["shuffle", "hub", "ring", "halving-doubling", "two-level"])
@pytest.mark.parametrize("order", ["bulk", "fifo", "urgent", "separate"])
def test_folded_agrees_with_every_node(aggregation, order):
    profile = model(len(aggregation) + len(order))
    if order == "bulk":
        plan = in_one(profile)
    else:
        kinds = ("push", "pull") if order == "separate" else ("reduce",)
        plan = layerwise(profile, urgent=order != "fifo", kinds=kinds)
    plan = replace(plan, aggregation=aggregation, chunk_bytes=32 * 1024)
    cluster = Cluster.uniform(workers=4, link=LINK, hubs=2 if aggregation == "hub" else 0)
    folded = simulate(profile, plan, cluster, iterations=2)
    full = simulate(profile, plan, cluster, iterations=2, full=True)
    assert set(folded.boundaries) == {"worker 0"}
    assert len(full.boundaries) == 4
    assert folded.iteration_time == pytest.approx(full.iteration_time, rel=0.02)
    assert folded.compute_time == pytest.approx(full.compute_time, rel=0.02)
    # Small transfers leave gaps on single links that the folded one does not see.
    assert folded.communication_time == pytest.approx(full.communication_time, rel=0.1)


@pytest.mark.parametrize("aggregation", ["shuffle", "hub", "ring", "halving-doubling"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_closed_forms_equal_what_the_routes_say(aggregation, workers):
    cluster = Cluster.uniform(workers=workers, link=LINK, hubs=2 if aggregation == "hub" else 0, interfaces=2)
    quick, counted = _closed_form(cluster, aggregation), derive(cluster, aggregation)
    assert quick is not None
    assert counted is not None
    assert (quick.roots, quick.root_is_worker) == (counted.roots, counted.root_is_worker)
    for ours, theirs in ((quick.gather, counted.gather), (quick.spread, counted.spread)):
        assert ours.share == pytest.approx(theirs.share)
        assert ours.rounds == theirs.rounds
        assert ours.starts == pytest.approx(theirs.starts)
        assert ours.lone == pytest.approx(theirs.lone)


@pytest.mark.parametrize("aggregation", ["shuffle", "two-level"])
@pytest.mark.parametrize(("racks", "per_rack"), [(2, 2), (2, 5), (3, 4), (4, 2)])
def test_closed_forms_of_racks_equal_what_the_routes_say(aggregation, racks, per_rack):
    cluster = Cluster.racked(racks=racks, per_rack=per_rack, link=LINK, oversubscription=2)
    quick, counted = _racked_form(cluster, aggregation), derive(cluster, aggregation)
    assert quick is not None
    assert counted is not None
    for ours, theirs in ((quick.gather, counted.gather), (quick.spread, counted.spread)):
        assert ours.share == pytest.approx(theirs.share)
        assert ours.rounds == theirs.rounds
        assert ours.starts == pytest.approx(theirs.starts)
        assert ours.lone == pytest.approx(theirs.lone)


def test_unequal_machines_are_not_folded():
    slow = Host(name="slow", link=Link(startup=0.0, bandwidth=1e6))
    mixed = Cluster(workers=(*Cluster.uniform(workers=3, link=LINK).workers, slow))
    assert fold(mixed, "shuffle") is None
    assert fold(Cluster.racked(racks=2, per_rack=2, link=LINK, oversubscription=2), "shuffle") is None
    assert fold(Cluster.uniform(workers=6, link=LINK), "tree") is None


def test_a_slow_worker_slows_the_cluster():
    profile = model(3)
    plan = layerwise(profile, urgent=True)
    hosts = Cluster.uniform(workers=4, link=LINK).workers
    slow = Host(name="slow", link=Link(startup=5e-5, bandwidth=LINK.bandwidth / 4))
    even = simulate(profile, plan, Cluster(workers=hosts))
    mixed = simulate(profile, plan, Cluster(workers=(*hosts[:3], slow)))
    assert mixed.communication_time > 2 * even.communication_time


def test_large_racks_fold_to_their_uplinks_load():
    """36 workers in 6 racks, 4:1: the uplink carries 2 x 6 x 5/6 times the bytes at 1.5 links' bandwidth."""
    profile = chain([10_000_000], forward=[0.0], backward=[0.0])
    cluster = Cluster.racked(racks=6, per_rack=6, link=LINK, oversubscription=4)
    timeline = simulate(profile, layerwise(profile, urgent=False), cluster)
    assert timeline.iteration_time == pytest.approx(2 * 6 * 5 / 6 * 1e7 / (1.5 * LINK.bandwidth), rel=0.05)
