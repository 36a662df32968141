"""TAC (TicTac): order reads by what each costs on the wire and what compute it lets start."""

from __future__ import annotations

from dovetail.network.model import Cluster, Link
from dovetail.plan.base import prioritize
from dovetail.plan.linkcost import one_way, picoseconds
from dovetail.plan.reads import Outstanding, dep_classes
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile


def tac(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Give every transfer the TAC priority of its most urgent parameter."""
    order = tac_order(profile, one_way(cluster, plan.aggregation))
    return prioritize(plan, {name: rank for rank, name in enumerate(order)})


def tac_order(profile: Profile, link: Link) -> list[str]:
    """Parameters in the order in which to bring them in; ties go to the first use."""
    names = sorted(profile.first_use, key=profile.first_use.__getitem__)
    sizes = {p.name: p.nbytes for p in profile.params}
    # A read that costs nothing counts as the least there is: ties with everything would make the order arbitrary.
    m = [max(1, picoseconds(link.time(sizes[name]))) for name in names]
    classes = dep_classes(profile, {op.name: picoseconds(op.time) for op in profile.ops})
    outstanding = Outstanding(classes, m)
    order = []
    while outstanding.reads:
        best = _best(outstanding, m)
        order.append(names[best])
        outstanding.remove(best)
    return order


def _best(outstanding: Outstanding, m: list[int]) -> int:
    """A scan, not a sort: with ties the comparator is not transitive, and only the first is needed."""
    # As M > 0, a read with P > 0 precedes every read without, and among those without only M+ counts.
    if not outstanding.eager:
        return outstanding.least_m_plus()
    p = outstanding.p
    first, *others = sorted(outstanding.eager)
    best = first
    for other in others:
        # Equation (2): `other` first iff min(P_best, M_other) < min(P_other, M_best). Algorithm 3 prints it reversed.
        loss, gain = min(p[best], m[other]), min(p[other], m[best])
        if loss < gain or (loss == gain and outstanding.m_plus(other) < outstanding.m_plus(best)):
            best = other
    return best
