"""Cutting layers into batches: the optimum against all cuts, the greedy ones against the paper's listings."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import chain, random_cluster, random_profile, seeds

from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Link
from dovetail.plan.base import per_parameter
from dovetail.plan.cuts import Row, better_greedy, greedy_from_first, greedy_from_last, makespan, optimal_cuts
from dovetail.plan.ibatch import ibatch_push
from dovetail.plan.layers import Layer, backward_layers, forward_layers
from dovetail.plan.policies import make_plan
from dovetail.plan.schedule import FORWARD, PULL, PUSH
from dovetail.trace.graph import Op, Param, Profile

whole = st.integers(0, 9).map(float)
rows = st.integers(1, 8).flatmap(
    lambda n: st.builds(
        lambda s, t, c: Row(startup=s, transfer=tuple(t), compute=tuple(c)),
        whole,
        st.lists(whole, min_size=n, max_size=n),
        st.lists(whole, min_size=n, max_size=n),
    )
)


def all_cuts(count: int) -> list[list[int]]:
    return [[*inner, count] for k in range(count) for inner in combinations(range(1, count), k)]


def pipeline(row: Row, cuts: list[int]) -> float:
    """The two threads, one batch after the other."""
    comm = comp = 0.0
    for begin, end in pairwise([0, *cuts]):
        comm = comm + row.startup + sum(row.transfer[begin:end])
        comp = max(comp, comm) + sum(row.compute[begin:end])
    return comp


def by_dynamic_program(row: Row) -> float:
    """Best[n][l] = min over l' of max(Best[n-1][l'], n Ts + sum Tt[..l]) + sum C[l'+1..l]."""
    count = len(row)
    best = {0: 0.0}
    answers = []
    for n in range(1, count + 1):
        here = n * row.startup
        best = {
            last: min(
                max(before, here + sum(row.transfer[:last])) + sum(row.compute[cut:last])
                for cut, before in best.items()
                if cut < last
            )
            for last in range(n, count + 1)
        }
        answers.append(best[count])
    return min(answers)


@settings(max_examples=1500, deadline=None)
@given(rows)
def test_the_optimum_is_the_best_of_all_cuts(row: Row) -> None:
    least = min(pipeline(row, cuts) for cuts in all_cuts(len(row)))
    assert pipeline(row, optimal_cuts(row)) == least
    assert by_dynamic_program(row) == least
    assert makespan(row, optimal_cuts(row)) == least


@settings(max_examples=1500, deadline=None)
@given(rows)
def test_the_greedy_cuts_are_valid_and_never_beat_the_optimum(row: Row) -> None:
    for cuts in (greedy_from_first(row), greedy_from_last(row), better_greedy(row)):
        assert cuts[-1] == len(row)
        assert all(a < b for a, b in pairwise([0, *cuts]))
        assert makespan(row, cuts) >= makespan(row, optimal_cuts(row))


def hides(row: Row, before: int, cut: int, end: int) -> bool:
    """Equation (5): pulling (cut, end] takes at least as long as computing (before, cut]."""
    return row.startup + sum(row.transfer[cut:end]) >= sum(row.compute[before:cut])


def literal_first(row: Row) -> list[int]:
    """Algorithm 1 line by line; where it has no choice left, the rest is one batch."""
    count = len(row)
    pairs = [(a, b) for a, b in combinations(range(1, count + 1), 2) if hides(row, 0, a, b)]
    if not pairs:
        return [count]
    most = max(sum(row.compute[:a]) for a, _ in pairs)
    pairs = [(a, b) for a, b in pairs if sum(row.compute[:a]) == most]
    cuts = [0, *min(pairs, key=lambda ab: (sum(row.transfer[: ab[0]]), ab))]
    while cuts[-1] < count:
        options = [x for x in range(cuts[-1] + 1, count + 1) if hides(row, cuts[-2], cuts[-1], x)]
        cuts.append(min(options, key=lambda x, cut=cuts[-1]: (sum(row.transfer[cut:x]), x)) if options else count)
    return cuts[1:]


def literal_last(row: Row) -> list[int]:
    """Algorithm 2 line by line."""
    count = len(row)
    pairs = [(a, b) for a, b in combinations(range(count), 2) if hides(row, a, b, count)]
    if not pairs:
        return [count]
    most = max(sum(row.compute[a:b]) for a, b in pairs)
    pairs = [(a, b) for a, b in pairs if sum(row.compute[a:b]) == most]
    before, cut = min(pairs, key=lambda ab: (sum(row.compute[ab[1] :]), ab[1], ab[0]))
    cuts = [count, cut]
    while before > 0:
        cuts.append(before)
        options = [x for x in range(before) if hides(row, x, before, cuts[-2])]
        before = min(options, key=lambda x, cut=before: (-sum(row.compute[x:cut]), x)) if options else 0
    return cuts[::-1]


@settings(max_examples=1500, deadline=None)
@given(rows)
def test_the_greedy_cuts_are_the_papers(row: Row) -> None:
    assert makespan(row, greedy_from_first(row)) == makespan(row, literal_first(row))
    assert makespan(row, greedy_from_last(row)) == makespan(row, literal_last(row))


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_two_layers(count: int) -> None:
    row = Row(startup=1.0, transfer=(2.0,) * count, compute=(3.0,) * count)
    for cut in (optimal_cuts, greedy_from_first, greedy_from_last, better_greedy):
        assert cut(row)[-1] == count


def test_no_feasible_pair_leaves_one_batch() -> None:
    """Compute far above any transfer: equation (5) holds for no pair (S2 is empty)."""
    row = Row(startup=0.1, transfer=(0.1, 0.1, 0.1), compute=(50.0, 50.0, 50.0))
    assert greedy_from_first(row) == [3]
    assert greedy_from_last(row) == [3]
    assert makespan(row, optimal_cuts(row)) == pytest.approx(0.2 + 150)


def test_the_optimum_beats_both_greedy_ones_somewhere() -> None:
    row = Row(startup=0.0, transfer=(8.0, 1.0, 7.0, 7.0), compute=(1.0, 8.0, 5.0, 4.0))
    assert makespan(row, optimal_cuts(row)) < makespan(row, better_greedy(row))


def test_many_layers_take_no_time() -> None:
    row = Row(
        startup=0.01,
        transfer=tuple((i * 7919 % 101) / 10 for i in range(5000)),
        compute=tuple((i * 104729 % 97) / 10 for i in range(5000)),
    )
    cuts = optimal_cuts(row)
    assert makespan(row, cuts) <= makespan(row, better_greedy(row))
    assert makespan(row, cuts) <= makespan(row, list(range(1, 5001)))


def test_layers_are_cut_at_first_readers_and_at_gradients() -> None:
    ops = (
        Op("load", 9.0),
        Op("f0", 1.0, ("load",), ("w0", "b0")),
        Op("relu", 0.5, ("f0",)),
        Op("f1", 2.0, ("relu",), ("w1", "w0")),
        Op("loss", 3.0, ("f1",)),
        Op("g1", 4.0, ("loss",), (), "w1"),
        Op("through", 5.0, ("g1",)),
        Op("g0", 6.0, ("through",), (), "w0"),
        Op("gb", 7.0, ("through",), (), "b0"),
    )
    params = (Param("w0", 8), Param("b0", 4), Param("w1", 16), Param("frozen", 1))
    profile = Profile(ops, params)
    assert forward_layers(profile) == [Layer(("w0", "b0"), 12, 1.5), Layer(("w1", "frozen"), 17, 2.0)]
    assert backward_layers(profile) == [
        Layer(("w1",), 16, 7.0), Layer(("w0",), 8, 11.0), Layer(("b0", "frozen"), 5, 7.0)
    ]  # fmt: skip


def test_a_row_needs_both_times() -> None:
    with pytest.raises(BadInput, match="2 transfer and 1 compute"):
        Row(startup=0.0, transfer=(1.0, 1.0), compute=(1.0,))


@settings(max_examples=600, deadline=None)
@given(rows.filter(lambda row: all(t > 0 for t in row.compute)))
def test_pushes_are_the_mirror_image(row: Row) -> None:
    """Batched under the backward pass, the last gradient is away as soon as any batching can make it."""
    profile = chain([(int(t), 0.0, c) for t, c in zip(row.transfer, row.compute, strict=True)])
    # Two workers halve what crosses a link, so twice the model at the same rate costs Tt a layer.
    cluster = Cluster.uniform(workers=2, link=Link(startup=row.startup, bandwidth=0.5))
    plan = ibatch_push(per_parameter(profile), profile, cluster)
    backward = list(reversed(range(len(row))))

    def away(groups: list[list[int]]) -> float:
        comm = comp = 0.0
        for group in groups:
            comp += sum(row.compute[i] for i in group)
            comm = max(comm, comp) + row.startup + sum(row.transfer[i] for i in group)
        return comm

    planned = [[int(n[1:]) for n in t.params] for t in sorted(plan.transfers, key=lambda t: t.priority)]
    every = [[backward[a:b] for a, b in pairwise([0, *cuts])] for cuts in all_cuts(len(row))]
    assert away(planned) == pytest.approx(min(map(away, every)))


@settings(max_examples=200, deadline=None)
@given(seeds, seeds, st.sampled_from(["ibatch", "ibatch-greedy"]))
def test_pulls_are_batches_of_consecutive_layers(seed: int, other: int, policy: str) -> None:
    profile = random_profile(seed)
    plan = make_plan(profile, random_cluster(other), policy)
    pulls = sorted((t for t in plan.transfers if t.kind == PULL), key=lambda t: t.priority)
    used = [profile.first_use[n] for t in pulls for n in t.params]
    assert all(t.window == FORWARD for t in pulls)
    assert used == sorted(used)
    assert {t.kind for t in plan.transfers} == {PUSH, PULL}
