"""Caramel's passes: order and its edges, batcher, packing, depth."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import chain, random_cluster, random_profile, seeds

from dovetail.network.model import Cluster, Link
from dovetail.plan.base import per_parameter
from dovetail.plan.batcher import Item, batch, batcher, threshold
from dovetail.plan.caramel_order import activation_order, best_order, order_edges
from dovetail.plan.clock import undisturbed
from dovetail.plan.depth import depth_of
from dovetail.plan.linkcost import both_ways
from dovetail.plan.packing import Group, pack
from dovetail.plan.schedule import BACKWARD, FORWARD
from dovetail.plan.windows import packing_of, windows
from dovetail.trace.graph import Op, Param, Profile


def graph_of(profile: Profile, edges: tuple[tuple[str, str], ...] = ()) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(profile.op_index)
    graph.add_edges_from((name, op.name) for op in profile.ops for name in op.inputs)
    graph.add_edges_from(edges)
    return graph


def producers(profile: Profile) -> dict[str, str]:
    return {op.produces: op.name for op in profile.ops if op.produces is not None}


@settings(max_examples=1000, deadline=None)
@given(seeds)
def test_the_best_order_is_the_greedy_rule(seed: int) -> None:
    profile = random_profile(seed)
    graph, made = graph_of(profile), producers(profile)
    time = {op.name: op.time for op in profile.ops}
    done: set[str] = set()
    left = sorted(made, key=lambda n: profile.op_index[made[n]])
    order = activation_order(profile)
    assert sorted(order) == sorted(left)
    for chosen in order:
        needs = {n: (nx.ancestors(graph, made[n]) | {made[n]}) - done for n in left}
        costs = {n: sum(time[op] for op in needs[n]) for n in left}
        assert costs[chosen] == min(costs.values())
        done |= needs[chosen]
        left.remove(chosen)


@settings(max_examples=1000, deadline=None)
@given(seeds)
def test_the_enforced_order_is_the_only_one_and_the_graph_stays_acyclic(seed: int) -> None:
    profile = random_profile(seed)
    order, made = activation_order(profile), producers(profile)
    graph = graph_of(profile, order_edges(profile, order))
    assert nx.is_directed_acyclic_graph(graph)
    for before, after in pairwise(order):
        assert nx.has_path(graph, made[before], made[after])


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_nothing_a_later_gradient_needs_delays_an_earlier_one(seed: int) -> None:
    profile = random_profile(seed)
    order, made, plain = activation_order(profile), producers(profile), graph_of(profile)
    graph = graph_of(profile, order_edges(profile, order))
    done: set[str] = set()
    for before, after in pairwise(order):
        done |= nx.ancestors(plain, made[before]) | {made[before]}
        fresh = (nx.ancestors(plain, made[after]) | {made[after]}) - done
        assert fresh <= nx.descendants(graph, made[before])


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_any_run_of_the_enforced_graph_activates_in_that_order(seed: int) -> None:
    """A worker that picks ready ops at random, many times over."""
    profile = random_profile(seed)
    order = activation_order(profile)
    graph = graph_of(profile, order_edges(profile, order))
    of_op = {op: n for n, op in producers(profile).items()}
    rng = random.Random(seed)
    for _ in range(5):
        waiting = {op: set(graph.predecessors(op)) for op in graph}
        seen = []
        while waiting:
            op = rng.choice([o for o, needs in waiting.items() if not needs])
            del waiting[op]
            for needs in waiting.values():
                needs.discard(op)
            if op in of_op:
                seen.append(of_op[op])
        assert seen == order


def test_without_edges_the_order_is_open() -> None:
    """The property above can fail: two independent gradients come in either order until edges fix it."""
    ops = (Op("f", 1.0, (), ("a", "b")), Op("ga", 5.0, ("f",), (), "a"), Op("gb", 1.0, ("f",), (), "b"))
    profile = Profile(ops, (Param("a", 4), Param("b", 4)))
    assert activation_order(profile) == ["b", "a"]
    assert order_edges(profile, ["b", "a"]) == (("gb", "ga"),)
    assert undisturbed(profile, (("gb", "ga"),)).order == ("f", "gb", "ga")


def test_ops_of_no_time_do_not_turn_the_order_round() -> None:
    ops = (Op("f", 1.0, (), ("a", "b")), Op("gb", 1.0, ("f",), (), "b"), Op("ga", 0.0, ("gb",), (), "a"))
    profile = Profile(ops, (Param("a", 4), Param("b", 4)))
    assert activation_order(profile) == ["b", "a"]


links = st.builds(Link, startup=st.floats(1e-6, 1e-2, allow_nan=False), bandwidth=st.floats(1e5, 1e10, allow_nan=False))


@given(links)
def test_the_threshold_is_its_definition(link: Link) -> None:
    def gain(x: float) -> float:
        return link.time(2 * x) / (2 * link.time(x))

    x = threshold(link)
    assert gain(x) == pytest.approx(0.8)
    assert gain(x * 1.01) > 0.8 > gain(x * 0.99)


items = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=14).map(
    lambda pairs: [Item(float(ready), nbytes) for ready, nbytes in sorted(pairs)]
)


@settings(max_examples=1000, deadline=None)
@given(items, st.sampled_from([0.0, 1.0, 4.0]))
def test_the_batcher_waits_only_while_the_link_is_busy(given_items: list[Item], startup: float) -> None:
    link = Link(startup=startup, bandwidth=2.0)
    limit = threshold(link)
    groups = batch(given_items, link)
    assert sorted(i for group in groups for i in group) == list(range(len(given_items)))
    sent: list[float] = []  # ends of what was handed over, in time order
    for group in groups:
        ready = given_items[group[-1]].ready
        sizes = [given_items[i].nbytes for i in group]
        if len(group) > 1:
            assert max(sizes) <= limit
            assert sum(sizes[:-1]) <= limit
        sent.append(max(sent[-1] if sent else 0.0, ready) + link.time(sum(sizes)))
    # A small item that is kept waiting: the link was still busy when the next item came.
    for group in groups:
        for i in group[:-1]:
            handed = [g for g in groups if g[-1] <= i]
            idle_at = 0.0
            for g in handed:
                idle_at = max(idle_at, given_items[g[-1]].ready) + link.time(sum(given_items[j].nbytes for j in g))
            assert idle_at >= given_items[i + 1].ready


@settings(max_examples=300, deadline=None)
@given(seeds, seeds)
def test_batches_are_ready_with_their_last_gradient_and_lose_no_byte(seed: int, other: int) -> None:
    profile, cluster = random_profile(seed), random_cluster(other)
    plan = best_order(per_parameter(profile), profile, cluster)
    clock = undisturbed(profile, plan.edges)
    made = batcher(plan, profile, cluster)  # a plan that exists covers every byte once
    ready = [max(clock.produced[n] for n in t.params) for t in made.transfers]
    assert ready == sorted(ready)
    assert [t.priority for t in made.transfers] == list(range(len(made.transfers)))


groups_strategy = st.lists(
    st.tuples(st.integers(4, 10), st.integers(0, 5), st.integers(0, 5)).map(
        lambda t: Group(ready=float(t[0]), deadline=float(t[1]), duration=float(t[2]))
    ),
    max_size=9,
)


@settings(max_examples=1500, deadline=None)
@given(groups_strategy)
def test_the_packer_never_breaks_a_window_and_never_overlaps(groups: list[Group]) -> None:
    packing = pack(groups, backward_end=10.0)
    assert [p.group for p in packing.placements] == list(range(len(groups)))
    for p, group in zip(packing.placements, groups, strict=True):
        assert p.end - p.start == pytest.approx(group.duration)
        assert p.start >= group.ready
        assert p.end <= packing.forward_start + group.deadline
        if p.window == FORWARD:
            assert p.start >= 10.0
        assert p.end <= packing.forward_start if p.window == BACKWARD else True
    busy = sorted((p.start, p.end) for p in packing.placements if p.end > p.start)
    assert all(a[1] <= b[0] for a, b in pairwise(busy))
    assert packing.forward_start == 10.0 + packing.stall
    stalled = [min(end, packing.forward_start) - max(start, 10.0) for start, end in busy]
    assert sum(length for length in stalled if length > 0) == packing.stall  # computation never waits for an idle link


def test_a_group_that_fits_nowhere_goes_where_it_costs_least() -> None:
    late = Group(ready=9.0, deadline=1.0, duration=4.0)  # 1 s of backward left, 1 s of forward: 3 s of stall
    early_reader = Group(ready=2.0, deadline=0.0, duration=9.0)  # 8 s left in the backward pass
    assert pack([late], backward_end=10.0).stall == 3.0
    alone = pack([early_reader], backward_end=10.0)
    assert (alone.stall, alone.placements[0].window) == (1.0, BACKWARD)
    forward = Group(ready=10.0, deadline=5.0, duration=7.0)
    alone = pack([forward], backward_end=10.0)
    assert (alone.stall, alone.placements[0].window) == (2.0, FORWARD)


@settings(max_examples=300, deadline=None)
@given(seeds, seeds)
def test_windows_follow_the_packing(seed: int, other: int) -> None:
    profile, cluster = random_profile(seed), random_cluster(other)
    plan = batcher(per_parameter(profile), profile, cluster)
    placed = packing_of(plan, profile, cluster).placements
    assert [t.window for t in windows(plan, profile, cluster).transfers] == [p.window for p in placed]


def test_late_layers_travel_under_the_forward_pass() -> None:
    """The last-produced layer leaves the link no time in the backward pass, a later reader's can wait."""
    profile = chain([(10, 5.0, 1.0), (60, 5.0, 1.0), (60, 50.0, 40.0)])
    cluster = Cluster.uniform(workers=2, link=Link(startup=0.0, bandwidth=10.0))
    plan = windows(per_parameter(profile), profile, cluster)
    window = {t.params[0]: t.window for t in plan.transfers}
    assert window["l1"] == FORWARD
    assert BACKWARD in window.values()


def test_depth_grows_with_size_between_its_bounds() -> None:
    assert [depth_of(n, 100.0) for n in (0, 99, 100, 101, 250, 799, 800, 10**9)] == [1, 1, 1, 1, 2, 7, 8, 8]
    assert depth_of(1, 0.0) == 8
    assert depth_of(0, 0.0) == 1


def test_the_threshold_of_a_reduction_is_that_of_its_link() -> None:
    link = Link(startup=1e-3, bandwidth=1e6)
    whole = both_ways(Cluster.uniform(workers=2, link=link), "shuffle")
    assert threshold(whole) == pytest.approx(1.5 * 2e-3 * 1e6)
