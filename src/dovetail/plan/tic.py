"""TIC (TicTac): order reads by the graph alone, those that block the fewest others first."""

from __future__ import annotations

from dovetail.network.model import Cluster
from dovetail.plan.base import prioritize
from dovetail.plan.reads import Outstanding, dep_classes
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile


def tic(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Give every transfer the TIC priority of its most urgent parameter."""
    # Equal priorities go in the plan's order, and that should be the order of use.
    return prioritize(prioritize(plan, profile.first_use), tic_ranks(profile))


def tic_ranks(profile: Profile) -> dict[str, int]:
    """Parameter -> rank of its M+ when a read costs 1 and compute nothing; equal M+ share a rank."""
    names = sorted(profile.first_use, key=profile.first_use.__getitem__)
    classes = dep_classes(profile, dict.fromkeys(profile.op_index, 0))
    reads = Outstanding(classes, [1] * len(names))
    m_plus = [reads.m_plus(i) for i in range(len(names))]
    rank = {value: i for i, value in enumerate(sorted(set(m_plus)))}
    return {name: rank[value] for name, value in zip(names, m_plus, strict=True)}
