"""`auto`: plans by prediction, each tried on a few early iterations; the measured best stays."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.c10d.line import fitted, iteration_time
from dovetail.network.model import Cluster
from dovetail.plan.auto import candidates, label
from dovetail.plan.linkcost import WITH_HUBS
from dovetail.plan.policies import LEAST_RING, plan_for_training
from dovetail.plan.schedule import Plan
from dovetail.plan.usual import DDP, usual_plan, usual_plans
from dovetail.simulate.run import simulate
from dovetail.trace.graph import Profile
from dovetail.units import format_seconds

ROUNDS = 5  # iterations a candidate is tried for; the first one fills the pipeline and is not counted
MOST = 3  # candidates tried for real, DDP's schedule among them
CLEARLY = 0.99  # the predicted best gives way only to one that takes less than this share of its time
COMPARABLE = 1.1  # times the best prediction: another pattern's best plan is tried before a second one of the same
CROWDED = 1.05  # where several send to one they take turns, which costs a little that the simulator does not know
NAMES = ("tac", "p3", "caramel", "dear")  # beside DDP's, tried where the aggregation or the update's place is fixed


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan and the iteration time that the simulator gives it."""

    plan: Plan
    predicted: float


def shortlist(profile: Profile, cluster: Cluster, *, aggregation: str | None, place: str) -> list[Candidate]:
    """The plans worth trying, the most promising first, DDP's schedule always among them."""
    plans = [p for p in candidates(profile, cluster) if p.update == place and aggregation in (None, p.aggregation)]
    # Away from the workers, only a hub or a shuffle's masters can update, whatever the policy would take by itself.
    fixed = aggregation or (None if place == "worker" else "hub" if cluster.hubs else "shuffle")
    plans.append(usual_plan(profile, cluster, aggregation=fixed or "ring", update=place))
    plans += [plan_for_training(profile, cluster, name, aggregation=fixed, update=place) for name in NAMES]
    distinct = {replace(p, policy="", fingerprint=""): p for p in reversed(plans)}
    scored = [Candidate(p, simulate(profile, p, cluster, quick=True).iteration_time) for p in distinct.values()]
    scored.sort(key=lambda c: _expected(c, len(cluster.workers)))
    usual = min((c for c in scored if c.plan.policy == DDP), key=lambda c: c.predicted)
    others = _varied([c for c in scored if c.plan.policy != DDP])[: MOST - 1]
    return sorted([*others, usual], key=lambda c: _expected(c, len(cluster.workers)))


def group_shortlist(profile: Profile, cluster: Cluster) -> list[Candidate]:
    """The same on a process group, whose collectives form one line; `cluster` holds what they cost there."""
    made = [plan_for_training(profile, cluster, name, aggregation="shuffle", update="worker") for name in NAMES]
    plans = [fitted(p, profile, cluster) for p in (*usual_plans(profile, cluster, aggregation="shuffle"), *made)]
    scored = sorted((Candidate(p, iteration_time(profile, p, cluster)) for p in plans), key=lambda c: c.predicted)
    usual = next(c for c in scored if c.plan.policy == DDP)
    others = [c for c in scored if c.plan.policy != DDP][: MOST - 1]
    return [c for c in scored if c in others or c is usual]


def _expected(candidate: Candidate, workers: int) -> float:
    """What to rank by; a ring has one sender for each receiver, and a hub's link is as wide as those of its workers."""
    crowded = workers >= LEAST_RING and candidate.plan.aggregation not in ("ring", *WITH_HUBS)
    return candidate.predicted * (CROWDED if crowded else 1.0)


def _varied(scored: list[Candidate]) -> list[Candidate]:
    """Best first, but the best of each comparable pattern before seconds: what predictions miss, patterns differ in."""
    firsts: dict[str, Candidate] = {}
    for candidate in scored:
        if candidate.predicted <= COMPARABLE * scored[0].predicted:
            firsts.setdefault(candidate.plan.aggregation, candidate)
    return [*firsts.values(), *(c for c in scored if firsts.get(c.plan.aggregation) is not c)]


class Trials:
    """Which candidate runs in which round, and how long its rounds took on this rank."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = list(candidates)
        self.at = 0
        self._instants: list[float] = []
        self.measured: list[float] = []  # seconds, one a finished candidate

    def round_begins(self, now: float) -> bool:
        """Note the instant; True when the candidate has had its rounds."""
        self._instants.append(now)
        if len(self._instants) <= ROUNDS:
            return False
        spent = [b - a for a, b in zip(self._instants[1:], self._instants[2:], strict=False)]
        self.measured.append(statistics.median(spent))
        self._instants.clear()
        return True

    def advance(self) -> Plan | None:
        """The next candidate's plan, or None after the last."""
        self.at += 1
        return self.candidates[self.at].plan if self.at < len(self.candidates) else None


def verdict(candidates: Sequence[Candidate], by_rank: Sequence[Sequence[float]]) -> tuple[int, str]:
    """The candidate to keep, and the line that says what and why; a candidate is as slow as its slowest rank."""
    took = [max(times) for times in zip(*by_rank, strict=True)]
    fastest = min(range(len(took)), key=took.__getitem__)
    kept = fastest if took[fastest] < CLEARLY * took[0] else 0
    usual = next(i for i, c in enumerate(candidates) if c.plan.policy == DDP)
    line = (
        f"auto keeps {label(candidates[kept].plan)}: {format_seconds(took[kept])} an iteration, "
        f"predicted {format_seconds(candidates[kept].predicted)}"
    )
    if kept != 0:
        line += f"; {candidates[0].plan.policy} was predicted best but took {format_seconds(took[0])}"
    elif kept != usual:
        line += f"; DDP's schedule took {format_seconds(took[usual])}"
    return kept, line
