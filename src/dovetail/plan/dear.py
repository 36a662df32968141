"""DeAR: an all-reduce is two halves; the second may run under the next forward pass."""

from __future__ import annotations

from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, REDUCE, Plan
from dovetail.trace.graph import Profile


def dear(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Split each reduce: its push in production order in the backward pass, its pull by first use in the forward."""
    kept = [t for t in plan.transfers if t.kind != REDUCE]
    groups = [t for t in plan.transfers if t.kind == REDUCE]
    made = sorted(groups, key=lambda t: max((profile.production[n] for n in t.params), default=0))
    used = sorted(groups, key=lambda t: min((profile.first_use[n] for n in t.params), default=0))
    pushes = [replace(t, kind=PUSH, priority=i, window=BACKWARD) for i, t in enumerate(made)]
    # Pulls wait for the forward window, so their numbers follow the pushes' and never delay one.
    pulls = [replace(t, kind=PULL, priority=len(made) + i, window=FORWARD) for i, t in enumerate(used)]
    return replace(plan, transfers=(*kept, *pushes, *pulls))
