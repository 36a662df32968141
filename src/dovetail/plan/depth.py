"""Caramel's adaptive depth: large transfers go as several chunks at once, small ones whole."""

from __future__ import annotations

from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.batcher import threshold
from dovetail.plan.linkcost import both_ways
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile

DEEPEST = 8


def depth(plan: Plan, profile: Profile, cluster: Cluster, *, deepest: int = DEEPEST) -> Plan:
    """Set each transfer's depth: 1 chunk up to the batching threshold, growing with size to `deepest`."""
    limit = threshold(both_ways(cluster, plan.aggregation))
    return replace(
        plan, transfers=tuple(replace(t, depth=depth_of(t.nbytes, limit, deepest=deepest)) for t in plan.transfers)
    )


def depth_of(nbytes: int, limit: float, *, deepest: int = DEEPEST) -> int:
    """Chunks of `nbytes` that go in parallel; without startup costs (limit 0) cutting is free."""
    if nbytes <= limit:
        return 1
    return deepest if limit * deepest <= nbytes else max(1, int(nbytes // limit))
