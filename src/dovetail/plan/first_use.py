"""P3's priority: what the next forward pass needs first goes first."""

from __future__ import annotations

from dovetail.network.model import Cluster
from dovetail.plan.base import prioritize
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile


def first_use(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Give every transfer the rank of its earliest-read parameter in the forward pass."""
    return prioritize(plan, profile.first_use)
