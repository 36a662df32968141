"""The plain ways to group: everything at once, layer by layer; and the barrier most frameworks keep."""

from __future__ import annotations

from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.layers import forward_layers
from dovetail.plan.schedule import FORWARD, REDUCE, Part, Plan, Transfer
from dovetail.trace.graph import Profile


def bulk(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """One transfer for the whole model, after the backward pass."""
    parts = tuple((p.name, 0, p.nbytes) for p in plan.params)
    return replace(plan, transfers=(Transfer(REDUCE, parts, window=FORWARD),) if parts else ())


def layerwise(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """One transfer a layer (parameters first read by the same op), in the order in which layers are complete."""
    sizes = {p.name: p.nbytes for p in plan.params}
    layers = [layer.params for layer in forward_layers(profile)]
    layers.sort(key=lambda names: max(profile.production[n] for n in names))
    transfers = []
    for rank, names in enumerate(layers):
        parts: tuple[Part, ...] = tuple((n, 0, sizes[n]) for n in sorted(names, key=profile.production.__getitem__))
        transfers.append(Transfer(REDUCE, parts, rank))
    return replace(plan, transfers=tuple(transfers))


def barrier(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """The next forward pass starts only when everything has arrived."""
    return replace(plan, barrier=True)
