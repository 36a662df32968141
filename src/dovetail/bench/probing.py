"""The racks of a bench's hosts as probing finds them, held against where the hosts really stand."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.bench.bounds import TWO_LEVEL, Groups, groups_of
from dovetail.bench.crew import Crew
from dovetail.bench.orders import RankPost, RingOrder, RingReply
from dovetail.bench.stage import Stage
from dovetail.network.group import group_hosts
from dovetail.network.matrix import ProbeMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What probing knows of a network; `exact`: the groups are the racks."""

    matrix: ProbeMatrix
    groups: Groups
    exact: bool


def probing_crew(stage: Stage, *, number: int) -> Crew:
    """One process on each worker's host that probes the others, and sums with unmodified Gloo."""
    workers = stage.site.workers
    return Crew(stage.lab, "gloo", "dovetail.bench.rank_worker", RankPost(), workers=workers, number=number)


def probe(crew: Crew, stage: Stage) -> Probed:
    """Every pair of hosts, and the groups that follow; the crew's first order."""
    crew.hear(RingReply)
    matrix = crew.ask(RingOrder(), RingReply)[0].matrix
    assert matrix is not None, "the order was to probe"
    groups = tuple(tuple(members) for members in group_hosts(matrix).groups)
    racks = groups_of(TWO_LEVEL, stage.network(stage.site.workers).racks)
    return Probed(matrix=matrix, groups=groups, exact=set(groups) == set(racks or [tuple(range(stage.site.workers))]))


def describe_groups(groups: Groups, exact: bool) -> str:
    """The groups in words, and whether they are right."""
    lists = " | ".join(" ".join(map(str, members)) for members in groups)
    return f"groups by probing: {lists} ({'the racks exactly' if exact else 'NOT the racks'})"
