"""`aggregation="auto"`: the pattern that moves the model soonest, by closed forms first and by simulation at last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dovetail.network.cost import Verdict, hierarchy
from dovetail.network.model import Cluster
from dovetail.plan.linkcost import both_ways
from dovetail.plan.policies import LEAST_RING, make_plan
from dovetail.plan.schedule import Plan
from dovetail.timeline import Timeline
from dovetail.trace.graph import Profile
from dovetail.units import format_rate, format_seconds

Simulate = Callable[[Profile, Plan, Cluster], Timeline]

FREE = "auto"  # as an aggregation: the pattern is ours to choose
MOST = 3  # patterns that are simulated
HOPELESS = 2.0  # times the best closed form; beyond it, a pattern is not simulated
PIECES = 128  # the model is simulated in about so many chunks: enough to compare patterns, and soon done
CLEARLY = 0.98  # a pattern gives way to one further down the list only if that takes less than this share of its time
AT_AGGREGATOR = ("hub", "shuffle")  # patterns that can run the optimizer where sums are complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pattern, what else was simulated, in seconds an iteration without computing, and why in one line."""

    aggregation: str
    simulated: dict[str, float]
    reason: str


def choose_pattern(
    profile: Profile,
    cluster: Cluster,
    simulate: Simulate,
    *,
    policy: str = "p3",
    place: str = "worker",
    hub_in_each_rack: bool = False,
) -> Choice:
    """The pattern for this cluster; `hub_in_each_rack` says that hub i is known to stand in rack i.

    Computing is left out: before the first iteration nobody knows how long it takes, and the pattern that is soonest
    without it is never the wrong one with it.
    """
    idle = replace(profile, ops=tuple(replace(op, time=0.0) for op in profile.ops))
    racks = len({host.rack for host in cluster.workers})
    rule = _rack_rule(cluster) if hub_in_each_rack and racks > 1 and len(cluster.hubs) == racks else None
    known = _patterns(cluster, racks, place, rule)
    quick = {pattern: both_ways(cluster, pattern).time(profile.nbytes) for pattern in known}
    best = min(quick.values())
    tried = sorted((p for p in known if quick[p] <= HOPELESS * best), key=lambda p: quick[p])[:MOST]
    if rule is not None and rule.pays and place == "worker" and "rack-hubs" not in tried:
        tried.append("rack-hubs")  # the inequality holds: the simulator has the last word
    seconds: dict[str, float] = {}
    for pattern in (p for p in known if p in tried):
        plan = make_plan(idle, cluster, policy, aggregation=pattern, update=_place(pattern, place))
        coarse = replace(plan, chunk_bytes=max(plan.chunk_bytes, profile.nbytes // PIECES))
        seconds[pattern] = simulate(idle, coarse, cluster).iteration_time
    chosen = next(iter(seconds))
    for pattern, taken in seconds.items():
        if taken < CLEARLY * seconds[chosen]:
            chosen = pattern
    return Choice(aggregation=chosen, simulated=seconds, reason=_reason(chosen, seconds, cluster, rule))


def _patterns(cluster: Cluster, racks: int, place: str, rule: Verdict | None) -> list[str]:
    """What this cluster can run; among equals the earlier one wins, so hubs in racks come first where they pay."""
    known = ["rack-hubs"] if rule is not None and rule.pays else []
    known += ["hub"] if cluster.hubs else []
    # Three ranks that shuffle send to each other at once and lose packets, which the simulator does not know.
    known += ["ring", "shuffle"] if len(cluster.workers) >= LEAST_RING else ["shuffle", "ring"]
    known += ["halving-doubling", "tree"]
    known += ["two-level"] if racks > 1 else []
    known += ["rack-hubs"] if rule is not None and not rule.pays else []
    return [p for p in known if p in AT_AGGREGATOR] if place == "hub" else known


def _place(pattern: str, place: str) -> str:
    return place if pattern in AT_AGGREGATOR else "worker"


def _rack_rule(cluster: Cluster) -> Verdict:
    """Whether a hub in each rack pays, by the thesis's inequality with the slowest of each kind of link."""
    racks = {host.rack for host in cluster.workers}
    return hierarchy(
        per_rack=max(1, len(cluster.workers) // len(racks)),
        racks=len(racks),
        core=min((link.bandwidth for link in cluster.uplinks.values()), default=float("inf")),
        hub=min(host.interfaces * host.link.bandwidth for host in cluster.hubs),
        worker=cluster.slowest.bandwidth,
    )


def _reason(chosen: str, seconds: dict[str, float], cluster: Cluster, rule: Verdict | None) -> str:
    others = ", ".join(f"{p} {format_seconds(s)}" for p, s in seconds.items() if p != chosen)
    line = f"{chosen}, predicted to move the model in {format_seconds(seconds[chosen])}"
    if others:
        line += f" ({others})"
    slowest = format_rate(cluster.slowest.bandwidth)
    line += f", with {len(cluster.workers)} ranks at {slowest} or more"
    if cluster.uplinks:
        thinnest = min(link.bandwidth for link in cluster.uplinks.values())
        line += f" in {len(cluster.uplinks)} racks whose uplinks carry {format_rate(thinnest)}"
    if rule is not None:
        sign = ">" if rule.pays else "<="
        line += f"; a hub in each rack: {rule.flat * 1e9:.3g} {sign} {rule.hierarchical * 1e9:.3g} ns a byte"
    return line
