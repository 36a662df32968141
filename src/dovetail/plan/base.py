"""What every pass shares: the plan they start from, and how an order becomes priorities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.schedule import KINDS, REDUCE, Plan, Transfer
from dovetail.trace.graph import Profile

Pass = Callable[[Plan, Profile, Cluster], Plan]


def per_parameter(profile: Profile, *, policy: str = "custom") -> Plan:
    """The plan all passes start from: one reduce a parameter, at once, in the order gradients are produced."""
    ranked = sorted(profile.params, key=lambda p: profile.production[p.name])
    return Plan(
        policy=policy,
        params=profile.params,
        transfers=tuple(Transfer(REDUCE, ((p.name, 0, p.nbytes),), rank) for rank, p in enumerate(ranked)),
        fingerprint=profile.fingerprint,
    )


def prioritize(plan: Plan, rank: Mapping[str, int], *, kinds: tuple[str, ...] = KINDS) -> Plan:
    """Give each transfer of `kinds` the smallest rank among its parameters, most urgent first in the plan."""
    ranked = (
        replace(t, priority=min((rank[name] for name in t.params), default=t.priority)) if t.kind in kinds else t
        for t in plan.transfers
    )
    return replace(plan, transfers=tuple(sorted(ranked, key=lambda t: t.priority)))


def name_of(step: Pass) -> str:
    """The name a pass is switched off by: its function's, with `-` for `_`; a partial keeps its function's."""
    inner = getattr(step, "func", step)
    return str(getattr(inner, "__name__", type(inner).__name__)).replace("_", "-")
