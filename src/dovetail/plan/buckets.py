"""PyTorch DDP's buckets: gradients in the order they are produced, a small first bucket, then 25 MiB each."""

from __future__ import annotations

from dataclasses import replace

from dovetail.errors import BadInput
from dovetail.network.model import Cluster
from dovetail.plan.schedule import REDUCE, Part, Plan, Transfer
from dovetail.trace.graph import Profile

MIB = 1024 * 1024


def buckets(
    plan: Plan, profile: Profile, cluster: Cluster, *, max_bytes: int = 25 * MIB, first_bytes: int = MIB
) -> Plan:
    """Fill buckets by production; one closes when it holds `max_bytes` or more (the first: `first_bytes`)."""
    if max_bytes < 1 or first_bytes < 1:
        raise BadInput(f"buckets of {max_bytes} bytes, the first of {first_bytes}; give 1 or more")
    transfers: list[Transfer] = []
    held: list[Part] = []
    size = 0
    for p in sorted(plan.params, key=lambda p: profile.production[p.name]):
        held.append((p.name, 0, p.nbytes))
        size += p.nbytes
        if size >= (max_bytes if transfers else first_bytes):
            transfers.append(Transfer(REDUCE, tuple(held), len(transfers)))
            held, size = [], 0
    if held:
        transfers.append(Transfer(REDUCE, tuple(held), len(transfers)))
    return replace(plan, transfers=tuple(transfers))
