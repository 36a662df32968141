"""Pulls that need not wait for the end of the backward pass, for networks on which all transfers form one line."""

from __future__ import annotations

from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, Plan
from dovetail.trace.graph import Profile


def eager(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Every pull may start as soon as its pushes are summed; priorities still let pushes go first.

    A window keeps pulls out of the way of pushes. Where one line takes the most urgent of what is there, priorities do
    that, and a line that stands still under the backward pass has more to do under the forward pass.
    """
    held = {name for t in plan.transfers if t.kind == PUSH and t.window == FORWARD for name in t.params}
    freed = (replace(t, window=BACKWARD) if t.kind == PULL and held.isdisjoint(t.params) else t for t in plan.transfers)
    return replace(plan, transfers=tuple(freed))
