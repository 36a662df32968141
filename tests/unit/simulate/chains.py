"""Small profiles and plans for the simulator's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.plan.schedule import Plan, Transfer
from dovetail.trace.graph import Op, Param, Profile


def chain(sizes: Sequence[int], *, forward: Sequence[float], backward: Sequence[float]) -> Profile:
    """One forward and one backward op a layer; layer i is parameter `p{i}`."""
    ops: list[Op] = []
    for i, time in enumerate(forward):
        ops.append(Op(f"f{i}", time, (ops[-1].name,) if ops else (), (f"p{i}",)))
    for i in reversed(range(len(backward))):
        ops.append(Op(f"b{i}", backward[i], (ops[-1].name,), (), f"p{i}"))
    return Profile(tuple(ops), tuple(Param(f"p{i}", n) for i, n in enumerate(sizes)))


def layerwise(profile: Profile, *, urgent: bool, kinds: Sequence[str] = ("reduce",), **settings: Any) -> Plan:
    """One transfer a parameter and kind, in production order; `urgent` gives first use the priority."""
    made = sorted(profile.params, key=lambda p: profile.production[p.name])
    transfers = [
        Transfer(kind, ((p.name, 0, p.nbytes),), profile.first_use[p.name] if urgent else 0)
        for p in made
        for kind in kinds
    ]
    return Plan(policy="test", params=profile.params, transfers=tuple(transfers), **settings)
