"""Which plan the next round runs on: the one for the recorded order, or, with `auto`, what is being tried."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch.distributed as dist

from dovetail.c10d.line import as_cluster
from dovetail.c10d.pace import measure_line
from dovetail.network.measure import PARTNERS, host_links, measure_pairs, route_address
from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile
from dovetail.training.choosing import Candidate, Trials, group_shortlist, shortlist, verdict
from dovetail.training.opening import C10D, Opener


class Replanner(Protocol):
    """Asked by all ranks before every round but the first; all get the same answer."""

    looks: int  # iterations that are recorded before a plan can be made
    done: bool

    def next(self, rounds: int, profile: Callable[[], Profile]) -> Plan | None: ...


class Once:
    """A fixed policy: rank 0's recorded order and, where it matters, the measured links make the plan, for good."""

    looks = 1

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self.done = False

    def next(self, rounds: int, profile: Callable[[], Profile]) -> Plan | None:
        """The plan for the recorded order, or None when it is the one in force."""
        self.done = True
        opener = self._opener
        if opener.cluster is None and opener.agreed("measure", lambda: opener.weighs_links(profile()), bool):
            opener.cluster = measured(opener, partners=1)
        plan = opener.agreed("plan", lambda: opener.make_plan(profile()), Plan)
        return plan if plan.transfers != opener.plan.transfers else None


class Auto:
    """Measure the network, predict, try the most promising plans and DDP's schedule, keep the fastest."""

    looks = 2  # the first iteration is no measure: memory is allocated and caches are cold

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._trials: Trials | None = None
        self.done = False

    def next(self, rounds: int, profile: Callable[[], Profile]) -> Plan | None:
        """The next candidate when it is time for one, and at the end the winner."""
        if self._trials is None:
            if rounds < self.looks:
                return None
            opener = self._opener
            cluster = opener.cluster or measured(opener)
            found = opener.agreed("candidates", lambda: self._candidates(profile(), cluster), list[Candidate])
            self._trials = Trials(found)
            self._trials.round_begins(time.monotonic())
            return found[0].plan
        if not self._trials.round_begins(time.monotonic()):
            return None
        plan = self._trials.advance()
        if plan is None:
            return self._settle(self._trials)
        self._trials.round_begins(time.monotonic())
        return plan

    def _candidates(self, profile: Profile, cluster: Cluster) -> list[Candidate]:
        opener = self._opener
        if opener.setting.engine == C10D:
            return group_shortlist(profile, cluster)
        fixed = None if opener.free else opener.setting.pattern
        return shortlist(profile, cluster, aggregation=fixed, place=opener.place)

    def _settle(self, trials: Trials) -> Plan | None:
        by_rank: list[list[float]] = [[]] * self._opener.world
        dist.all_gather_object(by_rank, trials.measured)
        kept, line = verdict(trials.candidates, by_rank)
        self.done = True
        if dist.get_rank() == 0:
            print(f"dovetail: {line}", file=sys.stderr, flush=True)
        return trials.candidates[kept].plan if kept != len(trials.candidates) - 1 else None


def measured(opener: Opener, *, partners: int = PARTNERS) -> Cluster:
    """The ranks' links as they are now; a dedicated hub is taken to serve all workers at full speed.

    On a process group it is what the group's own collectives cost that counts, not what a stream of bytes does.
    """
    if opener.setting.engine == C10D:
        return as_cluster(measure_line(opener.device), opener.world)
    limit = opener.setting.options.rate
    pairs = measure_pairs(
        dist.distributed_c10d.PrefixStore(f"dovetail/{opener.name}/measure", opener.store),
        rank=dist.get_rank(),
        world=opener.world,
        host=route_address(opener.meeting_host, 1),
        partners=partners,
    )
    links = [
        replace(link, bandwidth=min(link.bandwidth, limit)) if limit else link
        for link in host_links(pairs, opener.world)
    ]
    widest = max(links, key=lambda link: link.bandwidth)
    hub = Link(startup=widest.startup, bandwidth=sum(link.bandwidth for link in links))
    return Cluster(
        workers=tuple(Host(name=f"worker {i}", link=link) for i, link in enumerate(links)),
        hubs=tuple(Host(name=f"hub {i}", link=hub) for i in range(len(opener.setting.hubs))),
    )
