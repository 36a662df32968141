"""iBatch: pull a row of layers in batches, so that pulling one batch hides behind computing the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail.network.model import Cluster
from dovetail.plan.cuts import Row, better_greedy, optimal_cuts
from dovetail.plan.layers import Layer, backward_layers, forward_layers
from dovetail.plan.linkcost import one_way
from dovetail.plan.schedule import FORWARD, PULL, PUSH, REDUCE, Part, Plan, Transfer
from dovetail.trace.graph import Profile


def ibatch(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Push what the plan holds as it holds it; pull in the batches that end the forward pass soonest."""
    return _batched_pulls(plan, profile, cluster, optimal_cuts)


def ibatch_greedy(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """The same with the paper's two greedy algorithms, whichever is better."""
    return _batched_pulls(plan, profile, cluster, better_greedy)


def ibatch_push(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Batch what leaves the worker so that the last gradient is away soonest after the backward pass."""
    layers = backward_layers(profile)
    # Read from its end, a backward pass with pushes is a forward pass with pulls.
    cuts = optimal_cuts(_row(layers[::-1], plan, cluster))
    groups = [group[::-1] for group in _grouped(layers[::-1], cuts)][::-1]
    leaving = [t for t in plan.transfers if t.kind != PULL]
    if not leaving:
        return plan
    made = [
        Transfer(leaving[0].kind, _parts(plan, [layer.params for layer in group]), rank)
        for rank, group in enumerate(groups)
    ]
    return replace(plan, transfers=(*made, *(t for t in plan.transfers if t.kind == PULL)))


def _batched_pulls(plan: Plan, profile: Profile, cluster: Cluster, cut: Callable[[Row], list[int]]) -> Plan:
    layers = forward_layers(profile)
    if not layers:
        return plan
    pushes = [replace(t, kind=PUSH) for t in plan.transfers if t.kind in (PUSH, REDUCE)]
    first = 1 + max((t.priority for t in pushes), default=0)
    pulls = [
        Transfer(PULL, _parts(plan, [layer.params for layer in group]), first + rank, window=FORWARD)
        for rank, group in enumerate(_grouped(layers, cut(_row(layers, plan, cluster))))
    ]
    return replace(plan, transfers=(*pushes, *pulls))


def _row(layers: list[Layer], plan: Plan, cluster: Cluster) -> Row:
    link = one_way(cluster, plan.aggregation)
    return Row(
        startup=link.startup,
        transfer=tuple(layer.nbytes / link.bandwidth for layer in layers),
        compute=tuple(layer.time for layer in layers),
    )


def _grouped(layers: list[Layer], cuts: list[int]) -> list[list[Layer]]:
    return [layers[begin:end] for begin, end in zip([0, *cuts[:-1]], cuts, strict=True)]


def _parts(plan: Plan, layers: list[tuple[str, ...]]) -> tuple[Part, ...]:
    sizes = {p.name: p.nbytes for p in plan.params}
    return tuple((name, 0, sizes[name]) for names in layers for name in names)
