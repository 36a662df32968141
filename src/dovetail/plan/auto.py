"""`auto`: the useful combinations of order, granularity, window, aggregation and update place, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from dovetail.network.model import Cluster
from dovetail.plan.base import Pass, per_parameter
from dovetail.plan.batcher import batcher
from dovetail.plan.dear import dear
from dovetail.plan.first_use import first_use
from dovetail.plan.linkcost import both_ways
from dovetail.plan.policies import make_plan, run_passes
from dovetail.plan.schedule import Plan
from dovetail.plan.slices import MAX_ELEMENTS, slices
from dovetail.plan.tac import tac
from dovetail.timeline import Timeline
from dovetail.trace.graph import Profile

Simulate = Callable[[Profile, Plan, Cluster], Timeline]

MOST_SLICES = 1500  # beyond that, slices cost planning and simulation time and gain nothing measurable
KEPT_PATTERNS = 2


def choose(profile: Profile, cluster: Cluster, simulate: Simulate) -> tuple[Plan, list[tuple[str, float]]]:
    """The candidate with the least simulated iteration time, and every candidate's (label, seconds), best first."""
    plans = candidates(profile, cluster)
    seconds = [simulate(profile, plan, cluster).iteration_time for plan in plans]
    ranked = sorted(range(len(plans)), key=lambda i: seconds[i])  # stable: among equals the simpler, listed first
    return plans[ranked[0]], [(label(plans[i]), seconds[i]) for i in ranked]


def label(plan: Plan) -> str:
    """One line that tells a candidate from the others."""
    return f"{plan.policy} / {plan.aggregation} / update at {plan.update}"


def candidates(profile: Profile, cluster: Cluster) -> list[Plan]:
    """A dozen plans at most, simplest first; PyTorch DDP's is always among them, so that the best is never worse."""
    plans = [make_plan(profile, cluster, "ddp")]
    for pattern in _patterns(profile, cluster):
        plans.extend(_combinations(profile, cluster, pattern))
    return _distinct(plans)


def _combinations(profile: Profile, cluster: Cluster, pattern: str) -> Iterable[Plan]:
    build = partial(_build, profile, cluster, pattern)
    yield make_plan(profile, cluster, "fifo", aggregation=pattern)
    yield build("batched", (batcher, first_use))
    if pattern not in ("shuffle", "hub"):
        # Patterns of many rounds pay a startup for each: only the coarse plans are worth a look.
        return
    cut = partial(slices, max_elements=_slice_elements(profile))
    yield make_plan(profile, cluster, "tac", aggregation=pattern)
    yield build("p3", (cut, first_use))
    yield build("dear", (batcher, dear))
    yield make_plan(profile, cluster, "caramel", aggregation=pattern)
    if pattern == "hub":
        yield replace(build("p3", (cut, first_use)), update="worker")
        yield build("tac-sliced", (cut, tac))
    else:
        yield make_plan(profile, cluster, "ibatch", aggregation=pattern)


def _build(profile: Profile, cluster: Cluster, pattern: str, name: str, passes: Sequence[Pass]) -> Plan:
    start = per_parameter(profile, policy=name)
    update = "hub" if pattern == "hub" else "worker"
    return run_passes(replace(start, aggregation=pattern, update=update), profile, cluster, passes)


def _patterns(profile: Profile, cluster: Cluster) -> list[str]:
    """The patterns that move the whole model soonest by their closed form; the direct ones come for free."""
    known = ["shuffle", "ring", "halving-doubling", "tree"]
    if cluster.hubs:
        known.insert(0, "hub")
    if len({h.rack for h in cluster.workers}) > 1:
        known.append("two-level")
    groups = max(1, len(profile.params) // 8)

    def seconds(pattern: str) -> float:
        link = both_ways(cluster, pattern)
        return groups * link.startup + profile.nbytes / link.bandwidth

    return sorted(known, key=seconds)[:KEPT_PATTERNS]


def _slice_elements(profile: Profile) -> int:
    width = max((p.itemsize for p in profile.params), default=4)
    return max(MAX_ELEMENTS, profile.nbytes // width // MOST_SLICES + 1)


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Plans that differ in more than the name; the first of equals stays."""
    seen: dict[Plan, Plan] = {}
    for plan in plans:
        seen.setdefault(replace(plan, policy=""), plan)
    return list(seen.values())
