"""The model as a row of layers, as the layer-wise papers see it, cut out of the traced graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.trace.graph import Op, Profile


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters that one op needs (or completes) together, and the compute time that goes with them."""

    params: tuple[str, ...]
    nbytes: int
    time: float  # seconds


def forward_layers(profile: Profile) -> list[Layer]:
    """Layers by first use; a layer's time runs from its first reader to that of the next layer."""
    seen: set[str] = set()
    groups: list[list[str]] = []
    times: list[float] = []
    for op in profile.ops[: profile.backward_start]:
        fresh = [name for name in dict.fromkeys(op.reads) if name not in seen]
        if fresh:
            groups.append(fresh)
            times.append(0.0)
            seen.update(fresh)
        if times:
            times[-1] += op.time
    return _layers(profile, groups, times, seen)


def backward_layers(profile: Profile) -> list[Layer]:
    """Layers by production; a layer's time is the backward compute since the layer before it was complete."""
    seen: set[str] = set()
    groups: list[list[str]] = []
    times: list[float] = []
    since = 0.0
    for op in _backward(profile):
        since += op.time
        if op.produces is not None:
            groups.append([op.produces])
            times.append(since)
            seen.add(op.produces)
            since = 0.0
    return _layers(profile, groups, times, seen)


def _backward(profile: Profile) -> Iterable[Op]:
    return profile.ops[profile.backward_start :]


def _layers(profile: Profile, groups: list[list[str]], times: list[float], seen: set[str]) -> list[Layer]:
    # What no op reads (or completes) must travel all the same; the last layer is the least urgent.
    rest = [p.name for p in profile.params if p.name not in seen]
    if rest and not groups:
        groups, times = [[]], [0.0]
    if rest:
        groups[-1].extend(rest)
    sizes = {p.name: p.nbytes for p in profile.params}
    return [Layer(tuple(names), sum(sizes[n] for n in names), time) for names, time in zip(groups, times, strict=True)]
