"""P3's slices: cut large transfers, so that one part travels back while the next is still on its way."""

from __future__ import annotations

from dataclasses import replace

from dovetail.errors import BadInput
from dovetail.network.model import Cluster
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile

MAX_ELEMENTS = 50_000  # P3's best


def slices(plan: Plan, profile: Profile, cluster: Cluster, *, max_elements: int = MAX_ELEMENTS) -> Plan:
    """Split transfers so that none exceeds `max_elements` of its widest element; priority is inherited."""
    if max_elements < 1:
        raise BadInput(f"slices of {max_elements} elements; give 1 or more")
    width = {p.name: p.itemsize for p in plan.params}
    parts = (
        piece
        for t in plan.transfers
        for piece in t.split(max_elements * max((width[name] for name in t.params), default=1), itemsizes=width)
    )
    return replace(plan, transfers=tuple(parts))


def slice_transfers(plan: Plan, *, max_bytes: int) -> Plan:
    """Split transfers so that none exceeds `max_bytes`; order is kept and no element is cut in two."""
    width = {p.name: p.itemsize for p in plan.params}
    parts = (piece for t in plan.transfers for piece in t.split(max_bytes, itemsizes=width))
    return replace(plan, transfers=tuple(parts))
