"""Pulls lose their window, but never start before the pushes they wait for may."""

from __future__ import annotations

from dovetail.network.model import Cluster, Link
from dovetail.plan.eager import eager
from dovetail.plan.policies import make_plan
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, Plan, Transfer
from dovetail.trace.graph import Op, Param, Profile

PROFILE = Profile(
    ops=(Op("f", 1e-3, reads=("a", "b")), Op("b", 1e-3, ("f",), produces="b"), Op("c", 1e-3, ("b",), produces="a")),
    params=(Param("a", 1 << 20), Param("b", 1 << 20)),
)
CLUSTER = Cluster.uniform(workers=4, link=Link(startup=1e-4, bandwidth=1e8))


def test_dears_pulls_may_start_under_the_backward_pass_and_still_come_after_pushes() -> None:
    before = make_plan(PROFILE, CLUSTER, "dear")
    after = eager(before, PROFILE, CLUSTER)
    assert {t.window for t in before.transfers if t.kind == PULL} == {FORWARD}
    assert {t.window for t in after.transfers} == {BACKWARD}
    last_push = max(t.priority for t in after.transfers if t.kind == PUSH)
    assert all(t.priority > last_push for t in after.transfers if t.kind == PULL)


def test_a_pull_of_what_is_pushed_under_the_forward_pass_keeps_its_window() -> None:
    halves = [Transfer(kind, ((name, 0, 1 << 20),), window=FORWARD) for kind in (PUSH, PULL) for name in ("a", "b")]
    early = Transfer(PUSH, (("b", 0, 1 << 20),))
    plan = Plan(policy="test", params=PROFILE.params, transfers=(halves[0], early, *halves[2:]))
    windows = {t.params: t.window for t in eager(plan, PROFILE, CLUSTER).transfers if t.kind == PULL}
    assert windows == {("a",): FORWARD, ("b",): BACKWARD}
