"""Top-k sparsification with error feedback: opt-in, because it changes the result of training."""

from __future__ import annotations

from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile


def sparsify(plan: Plan, profile: Profile, cluster: Cluster, *, keep: float = 0.01) -> Plan:
    """Let only the share `keep` of gradient values, the largest, travel; the rest waits as a local residual."""
    return replace(plan, keep=keep)
