"""dovetail fits communication into the gaps of computation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dovetail.errors import BadInput, DovetailError, Mismatch, Misuse, PeerLost, Refused, TimedOut, Unreachable
from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.schedule import Plan, Transfer
from dovetail.timeline import Span, Timeline
from dovetail.trace.graph import Op, Param, Profile

if TYPE_CHECKING:
    from dovetail.engine.launch import environment
    from dovetail.network.collective import collective_cost
    from dovetail.network.rank_order import rank_order
    from dovetail.plan.policies import make_plan as plan
    from dovetail.plan.policies import register_policy
    from dovetail.simulate.run import simulate
    from dovetail.trace.record import trace
    from dovetail.training import collective
    from dovetail.training.distribute import (
        clip_grad_norm_,
        distribute,
        gather_timeline,
        join,
        no_sync,
        shutdown,
        stats,
    )
    from dovetail.training.reorder import reorder
else:
    # Callable packages (see calls.py); the rest is imported at first use, so that planning needs no torch.
    from dovetail import plan, simulate, trace

_LATER = {
    "clip_grad_norm_": "dovetail.training",
    "collective": "dovetail.training",
    "collective_cost": "dovetail.network.collective",
    "distribute": "dovetail.training",
    "environment": "dovetail.engine.launch",
    "gather_timeline": "dovetail.training",
    "join": "dovetail.training",
    "no_sync": "dovetail.training",
    "rank_order": "dovetail.network.rank_order",
    "register_policy": "dovetail.plan.policies",
    "reorder": "dovetail.training",
    "shutdown": "dovetail.training",
    "stats": "dovetail.training",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value  # the next look-up is an ordinary one
    return value


__all__ = [
    "BadInput", "Cluster", "DovetailError", "Host", "Link", "Mismatch", "Misuse", "Op", "Param", "PeerLost", "Plan",
    "Profile", "Refused", "Span", "TimedOut", "Timeline", "Transfer", "Unreachable", "clip_grad_norm_", "collective",
    "collective_cost", "distribute", "environment", "gather_timeline", "join", "no_sync", "plan", "rank_order",
    "register_policy", "reorder", "shutdown", "simulate", "stats", "trace",
]  # fmt: skip
