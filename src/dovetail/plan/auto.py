"""`auto`: the useful combinations of order, granularity, window, aggregation and update place, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from dovetail.network.model import Cluster
from dovetail.plan.base import Pass, per_parameter
from dovetail.plan.batcher import batcher
from dovetail.plan.first_use import first_use
from dovetail.plan.linkcost import both_ways
from dovetail.plan.policies import make_plan, run_passes
from dovetail.plan.schedule import Plan
from dovetail.plan.slices import MAX_ELEMENTS, slices
from dovetail.plan.tac import tac
from dovetail.plan.usual import DDP, usual_plan
from dovetail.timeline import Timeline
from dovetail.trace.graph import Profile
from dovetail.units import format_count

Simulate = Callable[[Profile, Plan, Cluster], Timeline]

MOST_SLICES = 1500  # beyond that, slices cost planning and simulation time and gain nothing measurable
NOTHING_LEFT = 1.003  # an iteration this close to its computation alone is not worth more looking
DIRECT = ("shuffle", "hub")  # patterns of one round each way


def choose(profile: Profile, cluster: Cluster, simulate: Simulate) -> tuple[Plan, list[tuple[str, float]]]:
    """The candidate with the least simulated iteration time, and those tried as (label, seconds), best first."""
    tried: list[tuple[float, Plan]] = []
    for plan in candidates(profile, cluster):
        tried.append((simulate(profile, plan, cluster).iteration_time, plan))
        if tried[-1][0] <= NOTHING_LEFT * profile.compute_time:
            break
    tried.sort(key=lambda entry: entry[0])  # stable: among equals the simpler, listed first
    return tried[0][1], [(label(plan), seconds) for seconds, plan in tried]


def label(plan: Plan) -> str:
    """One line that tells a candidate from the others."""
    name = f"ddp in {format_count(len(plan.transfers), 'bucket')}" if plan.policy == DDP else plan.policy
    return f"{name} / {plan.aggregation} / update at {plan.update}"


def candidates(profile: Profile, cluster: Cluster) -> list[Plan]:
    """A dozen plans at most, simplest first; PyTorch DDP's is always among them, so that the best is never worse."""
    best, *others = _patterns(profile, cluster)
    plans = [usual_plan(profile, cluster), *_coarse(profile, cluster, best), *_fine(profile, cluster, best)]
    for pattern in others:
        plans.extend(_coarse(profile, cluster, pattern))
    return _distinct(plans)


def _coarse(profile: Profile, cluster: Cluster, pattern: str) -> Iterable[Plan]:
    """Few startups: worth a look with every pattern."""
    yield _build(profile, cluster, pattern, "batched", (batcher, first_use))


def _fine(profile: Profile, cluster: Cluster, pattern: str) -> Iterable[Plan]:
    """All that overlaps better, at more startups, which patterns of many rounds pay several times."""
    yield make_plan(profile, cluster, "caramel", aggregation=pattern)
    if pattern not in DIRECT:
        return
    cut = partial(slices, max_elements=_slice_elements(profile))
    yield make_plan(profile, cluster, "tac", aggregation=pattern)
    sliced = _build(profile, cluster, pattern, "p3", (cut, first_use))
    yield sliced
    yield make_plan(profile, cluster, "dear", aggregation=pattern)
    if pattern == "hub":
        yield replace(sliced, update="worker")
        yield _build(profile, cluster, pattern, "tac-sliced", (cut, tac))


def _build(profile: Profile, cluster: Cluster, pattern: str, name: str, passes: Sequence[Pass]) -> Plan:
    start = per_parameter(profile, policy=name)
    update = "hub" if pattern == "hub" else "worker"
    return run_passes(replace(start, aggregation=pattern, update=update), profile, cluster, passes)


def _patterns(profile: Profile, cluster: Cluster) -> list[str]:
    """The two patterns that move the whole model soonest by their closed form, the better one first."""
    known = ["shuffle", "ring", "halving-doubling", "tree"]
    if cluster.hubs:
        known.insert(0, "hub")
    if len({h.rack for h in cluster.workers}) > 1:
        known.append("two-level")
    groups = max(1, len(profile.params) // 8)

    def seconds(pattern: str) -> float:
        link = both_ways(cluster, pattern)
        return groups * link.startup + profile.nbytes / link.bandwidth

    return sorted(known, key=seconds)[:2]


def _slice_elements(profile: Profile) -> int:
    width = max((p.itemsize for p in profile.params), default=4)
    return max(MAX_ELEMENTS, profile.nbytes // width // MOST_SLICES + 1)


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Plans that differ in more than the name; the first of equals stays."""
    seen: dict[Plan, Plan] = {}
    for plan in plans:
        seen.setdefault(replace(plan, policy=""), plan)
    return list(seen.values())
