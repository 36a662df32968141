"""TIC and TAC against the definition, recomputed from scratch at every step."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import example, given, settings
from plan_cases import chain, random_profile, seeds

from dovetail.network.model import Cluster, Link
from dovetail.plan.linkcost import picoseconds
from dovetail.plan.policies import make_plan
from dovetail.plan.reads import Outstanding, dep_classes
from dovetail.plan.tac import tac_order
from dovetail.plan.tic import tic_ranks
from dovetail.trace.graph import Op, Param, Profile


def deps_of(profile: Profile) -> dict[str, set[str]]:
    deps: dict[str, set[str]] = {}
    for op in profile.ops:
        deps[op.name] = set(op.reads).union(*(deps[n] for n in op.inputs))
    return deps


def properties(profile: Profile, left: set[str], op_time: dict[str, int], read_time: dict[str, int]):
    """UpdateProperties exactly as the paper's Algorithm 1 writes it."""
    p, m_plus = dict.fromkeys(left, 0), dict.fromkeys(left, math.inf)
    for name, dep in deps_of(profile).items():
        outstanding = dep & left
        if len(outstanding) == 1:
            p[next(iter(outstanding))] += op_time[name]
        if len(outstanding) > 1:
            m = sum(read_time[r] for r in outstanding)
            for r in outstanding:
                m_plus[r] = min(m_plus[r], m)
    return p, m_plus


def tac_by_definition(profile: Profile, link: Link) -> list[str]:
    m = {p.name: max(1, picoseconds(link.time(p.nbytes))) for p in profile.params}
    op_time = {op.name: picoseconds(op.time) for op in profile.ops}
    left = sorted(m, key=profile.first_use.__getitem__)
    order = []
    while left:
        p, m_plus = properties(profile, set(left), op_time, m)

        def before(a: str, b: str, p=p, m_plus=m_plus) -> bool:
            x, y = min(p[b], m[a]), min(p[a], m[b])
            return x < y if x != y else m_plus[a] < m_plus[b]

        best = left[0]
        for other in left[1:]:
            if before(other, best):
                best = other
        order.append(best)
        left.remove(best)
    return order


@settings(max_examples=1500, deadline=None)
@given(seeds)
def test_tac_is_the_definition(seed: int) -> None:
    profile = random_profile(seed)
    for link in (Link(startup=1.0, bandwidth=1.0), Link(startup=0.0, bandwidth=4.0)):
        assert tac_order(profile, link) == tac_by_definition(profile, link)


@settings(max_examples=600, deadline=None)
@given(seeds)
def test_properties_stay_exact_while_reads_leave(seed: int) -> None:
    profile = random_profile(seed)
    names = sorted(profile.first_use, key=profile.first_use.__getitem__)
    read_time = {p.name: 1 + p.nbytes for p in profile.params}
    op_time = {op.name: int(op.time) for op in profile.ops}
    kept = Outstanding(dep_classes(profile, op_time), [read_time[n] for n in names])
    left = list(names)
    while left:
        p, m_plus = properties(profile, set(left), op_time, read_time)
        for name in left:
            rank = profile.first_use[name]
            assert kept.p[rank] == p[name]
            known = kept.m_plus(rank)
            assert known == m_plus[name] or (known > 1e18 and m_plus[name] == math.inf)
        gone = left.pop(seed % len(left))
        kept.remove(profile.first_use[gone])


@settings(max_examples=600, deadline=None)
@given(seeds)
@example(0)
def test_tic_ranks_by_m_plus_alone(seed: int) -> None:
    profile = random_profile(seed)
    ones = {p.name: 1 for p in profile.params}
    _, m_plus = properties(profile, set(ones), dict.fromkeys(profile.op_index, 0), ones)
    ranks = tic_ranks(profile)
    for a in ones:
        for b in ones:
            assert (ranks[a] < ranks[b]) == (m_plus[a] < m_plus[b])


def test_the_cheap_read_with_much_compute_goes_first() -> None:
    """The listing of Algorithm 3 has the comparison the wrong way round; equation (2) is right."""
    profile = Profile(
        (Op("use b", 1.0, (), ("b",)), Op("use a", 10.0, (), ("a",))),
        (Param("a", 1), Param("b", 10)),
    )
    assert tac_order(profile, Link(startup=0.0, bandwidth=1.0)) == ["a", "b"]


def test_a_tie_is_broken_by_the_impending_load() -> None:
    """The paper's case 2: no read alone starts anything; those that together start an op soonest go first."""
    profile = Profile(
        (Op("cd", 1.0, (), ("c", "d")), Op("ab", 1.0, (), ("a", "b")), Op("all", 1.0, ("cd", "ab"))),
        (Param("a", 1), Param("b", 1), Param("c", 5), Param("d", 5)),
    )
    assert set(tac_order(profile, Link(startup=0.0, bandwidth=1.0))[:2]) == {"a", "b"}


def test_ties_go_to_the_first_use() -> None:
    profile = chain([(4, 1.0, 1.0)] * 6)
    assert tac_order(profile, Link(startup=1.0, bandwidth=1.0)) == [f"l{i}" for i in range(6)]


def big_model(params: int, ops: int) -> Profile:
    """A chain with as many ops and parameters as asked, with skip connections and uneven times."""
    per = ops // (2 * params)
    made: list[Op] = []
    for i in range(params * per):
        inputs = [f"f{i - 1}"] if i else []
        if i > 20 and i % 9 == 0:
            inputs.append(f"f{i - 20}")
        made.append(Op(f"f{i}", 1e-6 * (i * 7919 % 101), tuple(inputs), (f"p{i // per}",) if i % per == 0 else ()))
    last = made[-1].name
    for i in range(ops - len(made)):
        gradient = f"p{params - 1 - i // per}" if i % per == per - 1 and i // per < params else None
        made.append(Op(f"b{i}", 1e-6 * (i * 31 % 97), (last,), (), gradient))
        last = f"b{i}"
    return Profile(tuple(made), tuple(Param(f"p{i}", 1000 + i * 7919 % 100_003) for i in range(params)))


def test_tac_is_fast_on_resnet_152_sizes() -> None:
    profile = big_model(363, 4655)
    assert len(profile.ops) == 4655
    link = Link(startup=50e-6, bandwidth=125e6)
    best = min(_timed(profile, link) for _ in range(5))
    assert best < 0.1


def _timed(profile: Profile, link: Link) -> float:
    begin = time.process_time()
    tac_order(profile, link)
    return time.process_time() - begin


@pytest.mark.parametrize("policy", ["tic", "tac"])
def test_the_policies_move_single_parameters_in_their_order(policy: str) -> None:
    profile = chain([(400, 1.0, 1.0), (40, 2.0, 1.0), (4000, 1.0, 3.0)])
    plan = make_plan(profile, Cluster.uniform(workers=3, link=Link(startup=1.0, bandwidth=100.0)), policy)
    assert plan.order == ["l0", "l1", "l2"]
    assert all(len(t.params) == 1 for t in plan.transfers)
    assert not plan.barrier
