"""Policies: named lists of passes, one per paper or system, and the way to add your own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dovetail.errors import BadInput
from dovetail.network.model import Cluster
from dovetail.plan.base import Pass, name_of, per_parameter
from dovetail.plan.batcher import batcher
from dovetail.plan.buckets import buckets
from dovetail.plan.bulk import barrier, bulk, layerwise
from dovetail.plan.caramel_order import best_order
from dovetail.plan.dear import dear
from dovetail.plan.depth import depth
from dovetail.plan.first_use import first_use
from dovetail.plan.ibatch import ibatch, ibatch_greedy
from dovetail.plan.linkcost import WITH_HUBS, one_way
from dovetail.plan.schedule import Plan
from dovetail.plan.slices import slices
from dovetail.plan.tac import tac
from dovetail.plan.tic import tic
from dovetail.plan.windows import windows
from dovetail.trace.graph import Profile

LEAST_RING = 3  # workers; two exchange with each other in any pattern
AUTO = "auto"  # not a list of passes: plan/auto.py compares plans by simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Passes in the order they run; `aggregation` is the default, None = hub where there is one, else shuffle."""

    passes: tuple[Pass, ...]
    about: str
    aggregation: str | None = None


_BUILT_IN: dict[str, Policy] = {
    "bulk": Policy(passes=(bulk, barrier), about="the whole model at once, after the backward pass"),
    "fifo": Policy(passes=(layerwise,), about="layer by layer as gradients appear (wait-free backpropagation)"),
    "ddp": Policy(passes=(buckets, barrier), about="PyTorch DDP: 25 MiB buckets by production", aggregation="ring"),
    "tic": Policy(passes=(tic,), about="TicTac without times: least blocking parameter first"),
    "tac": Policy(passes=(tac,), about="TicTac with times: best overlap first"),
    "p3": Policy(passes=(slices, first_use), about="P3: slices of 50,000 values, first use first"),
    "ibatch": Policy(passes=(layerwise, ibatch), about="iBatch with optimal batches of pulls under the forward pass"),
    "ibatch-greedy": Policy(passes=(layerwise, ibatch_greedy), about="iBatch with the paper's two greedy algorithms"),
    "dear": Policy(
        passes=(batcher, dear),
        about="DeAR: reduce in the backward pass, gather in the forward pass",
        aggregation="shuffle",
    ),
    "caramel": Policy(
        passes=(best_order, batcher, windows, depth, first_use),
        about="Caramel: best gradient order, batches, packed windows, adaptive depth",
        aggregation="shuffle",
    ),
}
_registered: dict[str, Policy] = {}


def policies() -> dict[str, Policy]:
    """Every policy by name, the built-in ones first."""
    return {**_BUILT_IN, **_registered}


def register_policy(
    name: str, passes: Sequence[Pass], *, about: str = "registered by the user", aggregation: str | None = None
) -> None:
    """Add a policy under a new name; registering a name again replaces what was registered before."""
    if name in _BUILT_IN or name == AUTO or not name:
        raise BadInput(f"policy name {name!r} is taken by dovetail; register it under another name")
    _registered[name] = Policy(passes=tuple(passes), about=about, aggregation=aggregation)


def make_plan(
    profile: Profile,
    cluster: Cluster,
    policy: str = "tac",
    *,
    aggregation: str | None = None,
    update: str | None = None,
    without: Collection[str] = (),
) -> Plan:
    """The plan of a named policy; `without` leaves single passes out by name, e.g. ("depth",)."""
    chosen = _find(policy)
    names = [name_of(step) for step in chosen.passes]
    off = {name.replace("_", "-") for name in without}
    unknown = sorted(off - set(names))
    if unknown:
        raise BadInput(f"policy {policy!r} has no pass {unknown[0]!r} to leave out; it has {', '.join(names)}")
    pattern = aggregation or chosen.aggregation or ("hub" if cluster.hubs else "shuffle")
    one_way(cluster, pattern)  # raises for a pattern that is unknown, or that this cluster cannot run
    place = update or ("hub" if pattern in WITH_HUBS else "worker")
    kept = [step for step, name in zip(chosen.passes, names, strict=True) if name not in off]
    start = replace(per_parameter(profile, policy=policy), aggregation=pattern, update=place)
    return run_passes(start, profile, cluster, kept)


def plan_for_training(
    profile: Profile,
    cluster: Cluster,
    policy: str,
    *,
    aggregation: str | None = None,
    update: str | None = None,
    without: Collection[str] = (),
) -> Plan:
    """The policy's plan; where the user names no pattern, three ranks and more sum in a ring if they can.

    A ring moves as many bytes as a shuffle, but each rank hears from one other only, so that none has to take turns.
    """
    plan = make_plan(profile, cluster, policy, aggregation=aggregation, update=update, without=without)
    if aggregation or cluster.hubs or plan.update != "worker" or len(cluster.workers) < LEAST_RING:
        return plan
    return make_plan(profile, cluster, policy, aggregation="ring", update=update, without=without)


def run_passes(plan: Plan, profile: Profile, cluster: Cluster, passes: Sequence[Pass]) -> Plan:
    """The plan after each pass in turn; a pass that breaks it is named in the error."""
    for step in passes:
        try:
            plan = step(plan, profile, cluster)
        except BadInput as error:
            raise BadInput(f"pass {name_of(step)!r}: {error}") from None
    return plan


def _find(policy: str) -> Policy:
    known = policies()
    if policy == AUTO:
        raise BadInput("policy 'auto' compares plans by simulation; use dovetail.plan.auto.choose, or name a policy")
    if policy not in known:
        raise BadInput(f"policy {policy!r} is unknown; it is one of {', '.join([*known, AUTO])}")
    return known[policy]
