"""dovetail fits communication into the gaps of computation."""

from dovetail.errors import BadInput, DovetailError, Mismatch, Misuse, PeerLost, Refused, Unreachable
from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.schedule import Plan, Transfer
from dovetail.timeline import Span, Timeline
from dovetail.trace.graph import Op, Param, Profile

__all__ = [
    "BadInput", "Cluster", "DovetailError", "Host", "Link", "Mismatch", "Misuse", "Op", "Param", "PeerLost", "Plan",
    "Profile", "Refused", "Span", "Timeline", "Transfer", "Unreachable",
]  # fmt: skip
