"""What everybody runs today: PyTorch DDP's schedule, in the bucket sizes that people tune it to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dovetail.network.model import Cluster, Link
from dovetail.plan.base import per_parameter
from dovetail.plan.buckets import MIB, buckets
from dovetail.plan.bulk import barrier
from dovetail.plan.clock import Clock, undisturbed
from dovetail.plan.linkcost import both_ways
from dovetail.plan.policies import make_plan, run_passes
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile

DDP = "ddp"
TUNED = (5 * MIB, MIB)  # what people set buckets to, beside the default of 25 MiB


def usual_plan(profile: Profile, cluster: Cluster, *, aggregation: str = "ring", update: str = "worker") -> Plan:
    """DDP's schedule with the buckets that end soonest one after the other; the default wins ties.

    A closed form decides: buckets take turns anyway, and simulating each size would double the cost of small plans.
    """
    clock, link = undisturbed(profile), both_ways(cluster, aggregation)
    plans = usual_plans(profile, cluster, aggregation=aggregation, update=update)
    return min(plans, key=lambda plan: _in_turn(plan, clock, link))


def usual_plans(profile: Profile, cluster: Cluster, *, aggregation: str = "ring", update: str = "worker") -> list[Plan]:
    """DDP's schedule in its default buckets and in the sizes people choose, each different plan once."""
    plans = [make_plan(profile, cluster, DDP, aggregation=aggregation, update=update)]
    for size in TUNED:
        plan = bucketed(profile, cluster, nbytes=size, aggregation=aggregation, update=update)
        plans += [plan] if plan not in plans else []
    return plans


def bucketed(
    profile: Profile, cluster: Cluster, *, nbytes: int, aggregation: str = "ring", update: str = "worker"
) -> Plan:
    """DDP's schedule in buckets of `nbytes`; a size that the user gives counts for the first bucket as well."""
    start = replace(per_parameter(profile, policy=DDP), aggregation=aggregation, update=update)
    return run_passes(start, profile, cluster, [partial(buckets, max_bytes=nbytes, first_bytes=nbytes), barrier])


def _in_turn(plan: Plan, clock: Clock, link: Link) -> float:
    """When the last bucket has arrived, if one starts after the other and none before its gradients are there."""
    free = 0.0
    for transfer in plan.transfers:
        ready = max((clock.produced[name] for name in transfer.params), default=0.0)
        free = max(free, ready) + link.time(transfer.nbytes)
    return free
