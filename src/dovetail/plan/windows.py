"""Caramel's transfer windows: which groups travel under the backward pass, and which under the next forward pass."""

from __future__ import annotations

from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.clock import undisturbed
from dovetail.plan.linkcost import both_ways
from dovetail.plan.packing import Group, Packing, pack
from dovetail.plan.schedule import REDUCE, Plan
from dovetail.trace.graph import Profile


def windows(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Set each reduce's window to the pass it was packed into; pushes and pulls keep theirs."""
    chosen = iter(placement.window for placement in packing_of(plan, profile, cluster).placements)
    return replace(
        plan, transfers=tuple(replace(t, window=next(chosen)) if t.kind == REDUCE else t for t in plan.transfers)
    )


def packing_of(plan: Plan, profile: Profile, cluster: Cluster) -> Packing:
    """Where on the link each reduce of the plan goes, in the plan's order, when computation runs undisturbed."""
    clock = undisturbed(profile, plan.edges)
    link = both_ways(cluster, plan.aggregation)
    return pack(
        [
            Group(
                ready=max((clock.produced[n] for n in t.params), default=0.0),
                deadline=min((clock.read[n] for n in t.params), default=clock.forward_end),
                duration=link.time(t.nbytes),
            )
            for t in plan.transfers
            if t.kind == REDUCE
        ],
        backward_end=clock.end,
    )
