"""Before training starts: the ranks probe their network, and rank 0 finds its racks and the pattern that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from dovetail.errors import Unreachable
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.model import Cluster
from dovetail.network.probe import Effort, probe_all
from dovetail.plan.choice import FREE, choose_pattern
from dovetail.simulate.run import simulate
from dovetail.trace.graph import Profile

EFFORT = Effort(echoes=100, bulk=2 * 1024 * 1024)
LEAST_WORLD = 4  # with fewer ranks there is nothing to group
_PATIENCE = 60.0  # seconds that a rank may be later than another

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the network: `aggregation` as the user gave it, `groups` where the racks are known."""

    aggregation: str
    policy: str
    place: str
    hubs: int
    groups: Groups | None
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The same on every rank: the pattern, its groups, the network behind them, and one line for people."""

    aggregation: str
    groups: Groups | None
    cluster: Cluster
    line: str


class _Patient:
    """A store whose `get` gives up in words."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.set, self.add = store.set, store.add

    def get(self, key: str) -> bytes:
        try:
            self._store.wait([key], timedelta(seconds=_PATIENCE))
        except RuntimeError:
            raise Unreachable(
                f"waited {_PATIENCE:.0f} s for another rank while the network was probed; has one failed?"
            ) from None
        found: bytes = self._store.get(key)
        return found


def probe_ranks(store: Any, name: str, *, rank: int, world: int, address: str) -> ProbeMatrix:
    """Latency and bandwidth of every pair of ranks; all ranks call it, all get the whole matrix."""
    return probe_all(
        _Patient(dist.distributed_c10d.PrefixStore(f"dovetail/{name}/survey", store)),
        rank=rank,
        hosts=[f"rank {r}" for r in range(world)],
        address=address,
        effort=EFFORT,
    )


def judge(question: Question, matrix: ProbeMatrix, profile: Profile) -> Finding:
    """What the probes say; a pure function, though only rank 0 is asked, so that all ranks go the same way."""
    # Not at the top: only rank 0 pays for loading what groups.
    from dovetail.network.group import Grouping, group_hosts
    from dovetail.network.infer import infer, narrow_between

    if question.groups is not None:
        grouping = Grouping(groups=[list(g) for g in question.groups], clarity=1.0)
    elif len(matrix.hosts) < LEAST_WORLD:
        grouping = Grouping(groups=[list(range(len(matrix.hosts)))], clarity=0.0)
    else:
        grouping = group_hosts(matrix)
        if question.aggregation == FREE and not narrow_between(matrix, grouping.groups):
            grouping = replace(grouping, clarity=0.0)
    cluster = infer(matrix, grouping, passes=EFFORT.passes, hubs=question.hubs, rate=question.rate)
    if question.aggregation != FREE:
        return Finding(
            aggregation=question.aggregation,
            groups=_frozen(grouping.groups),
            cluster=_racked(cluster, grouping.groups),
            line=f"{question.aggregation} {describe(grouping.groups, grouping.clarity)}",
        )
    choice = choose_pattern(
        profile,
        cluster,
        partial(simulate, iterations=1),
        policy=question.policy,
        place=question.place,
        hub_in_each_rack=question.groups is not None,
    )
    racks = grouping.groups if cluster.uplinks else None
    found = f"; {describe(racks, grouping.clarity)}" if racks and question.groups is None else ""
    return Finding(
        aggregation=choice.aggregation,
        groups=None if racks is None else _frozen(racks),
        cluster=cluster,
        line=f"aggregation auto takes {choice.reason}{found}",
    )


def describe(groups: Sequence[Sequence[int]], clarity: float) -> str:
    """The groups in words, and how clearly the probes show them."""
    lists = " ".join("[" + ", ".join(map(str, members)) + "]" for members in groups)
    return f"found {len(groups)} {'group' if len(groups) == 1 else 'groups'} of ranks: {lists} (clarity {clarity:.2f})"


def _racked(cluster: Cluster, groups: Sequence[Sequence[int]]) -> Cluster:
    """The cluster with the groups as its racks, also where their uplinks are no bottleneck."""
    rack = {node: f"rack {number}" for number, members in enumerate(groups) for node in members}
    if cluster.uplinks or len(groups) < 2:
        return cluster
    workers = tuple(replace(host, rack=rack[number]) for number, host in enumerate(cluster.workers))
    return replace(cluster, workers=workers)


def _frozen(groups: Sequence[Sequence[int]]) -> Groups:
    return tuple(tuple(members) for members in groups)
