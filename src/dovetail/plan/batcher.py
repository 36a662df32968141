"""Caramel's batcher: small parameters wait for company, but only while the link has other work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dovetail.network.model import Cluster, Link
from dovetail.plan.clock import undisturbed
from dovetail.plan.linkcost import both_ways
from dovetail.plan.schedule import PULL, Plan, Transfer
from dovetail.trace.graph import Profile


def threshold(link: Link) -> float:
    """The least x with f(2x) / (2 f(x)) > 0.8; for f(x) = startup + x / bandwidth that is this."""
    return 1.5 * link.startup * link.bandwidth if link.startup else 0.0  # also where bandwidth is infinite


def batcher(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Merge small transfers that are produced one after the other; priorities follow production."""
    clock = undisturbed(profile, plan.edges)
    link = both_ways(cluster, plan.aggregation)
    movable = [t for t in plan.transfers if t.kind != PULL]
    ready = {t: max((clock.produced[n] for n in t.params), default=0.0) for t in movable}
    movable.sort(key=ready.__getitem__)
    groups = batch([Item(ready[t], t.nbytes) for t in movable], link)
    merged = [_merge([movable[i] for i in group], rank) for rank, group in enumerate(groups)]
    return replace(plan, transfers=(*merged, *(t for t in plan.transfers if t.kind == PULL)))


@dataclass(frozen=True, slots=True)
class Item:
    """Something to send: when it is ready, and how much it is."""

    ready: float  # seconds
    nbytes: int


def batch(items: Sequence[Item], link: Link) -> list[list[int]]:
    """Indices of `items` (given by ready time) in groups, in the order in which groups are ready."""
    return sorted(_walk(items, link), key=lambda group: group[-1])


def _walk(items: Sequence[Item], link: Link) -> Iterator[list[int]]:
    limit = threshold(link)
    idle_at = 0.0  # when the link has sent all that was handed to it
    active: list[int] = []
    size = 0
    for i, item in enumerate(items):
        if item.nbytes > limit:
            idle_at = max(idle_at, item.ready) + link.time(item.nbytes)
            yield [i]
        else:
            active.append(i)
            size += item.nbytes
        upcoming = items[i + 1].ready if i + 1 < len(items) else float("inf")
        if active and (size > limit or idle_at < upcoming):
            idle_at = max(idle_at, item.ready) + link.time(size)
            yield active
            active, size = [], 0


def _merge(group: list[Transfer], rank: int) -> Transfer:
    parts = tuple(part for t in group for part in t.parts)
    return replace(group[0], parts=parts, priority=rank)
