"""One system under `bench train`: its processes, its bursts of iterations, and what they showed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dovetail.bench.bounds import transfer_time
from dovetail.bench.cpu import idle_share, read_cpu
from dovetail.bench.crew import BenchError, Crew
from dovetail.bench.orders import Order, Post, Ready, Reply, Workload
from dovetail.bench.result import SystemResult, Times
from dovetail.bench.stage import Stage, Tell
from dovetail.bench.systems import ALONE, System
from dovetail.lab import Watch, busy, link_spans
from dovetail.plan.policies import AUTO
from dovetail.timeline import LEAST_SHARE, Timeline

WARMUP = 2  # iterations before those that count
TRIAL = 3  # iterations to choose a variant by, and of a saved timeline
AUTO_WARMUP = 22  # iterations in which `auto` looks, tries its candidates and settles


def progress(line: Timeline) -> list[float]:
    """Times between the instants at which the last worker begins an iteration; they add up to the whole run."""
    begun = [max(instants) for instants in zip(*line.boundaries.values(), strict=True)]
    return [after - before for before, after in pairwise(begun)]


def paces(line: Timeline) -> list[float]:
    """The slowest worker's time of each iteration."""
    return [
        max(after - before for before, after in both)
        for both in zip(*(tuple(pairwise(bounds)) for bounds in line.boundaries.values()), strict=True)
    ]


def from_zero(line: Timeline) -> Timeline:
    """The same on a clock that is 0 when the first worker begins."""
    zero = min(bounds[0] for bounds in line.boundaries.values())
    return replace(
        line,
        spans=tuple(replace(s, start=s.start - zero, end=s.end - zero) for s in line.spans),
        boundaries={node: tuple(b - zero for b in bounds) for node, bounds in line.boundaries.items()},
    )


@dataclass(slots=True)
class _Seen:
    times: list[float] = field(default_factory=list)
    alphas: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)


class Run(Crew):
    """The system's ranks on the stage, with one workload after the other.

    Times are seconds of the monotonic clock, which all hosts of a lab share.
    """

    def __init__(self, stage: Stage, system: System, post: Post, *, workers: int, number: int) -> None:
        super().__init__(stage.lab, system.name, "dovetail.bench.worker", post, workers=workers, number=number)
        self.system, self.nbytes = system, 0
        self._workload: Workload | None = None
        self._heard = 0  # lines of rank 0 that belong to earlier workloads
        self._stage, self._hubs = stage, len(post.hubs)
        self._seen: dict[str, _Seen] = {}  # by variant that has a row

    def __enter__(self) -> Run:
        return self

    @property
    def variants(self) -> tuple[str, ...]:
        """Those with a row, once they are warmed up."""
        return tuple(self._seen)

    def wait_ready(self) -> None:
        """Until every rank has met the others."""
        self.hear(Ready)

    def take(self, workload: Workload) -> None:
        """Train this from now on; what was seen before is forgotten."""
        self._workload, self._seen, self._heard = workload, {}, len(self.said(0))

    def alone(self) -> Timeline:
        """Some iterations that compute and update, and nothing travels."""
        return self.burst(self._order(ALONE, TRIAL))

    def disturbed(self) -> Timeline:
        """The same with full links: hosts of a lab share their cores with its network."""
        with busy(self._stage.lab, self.workers if self._stage.shaped else 0):
            return self.burst(self._order(ALONE, 2 * TRIAL))

    def burst(self, order: Order) -> Timeline:
        """Run an order; ranks that end with different weights make the run worthless."""
        replies = self.ask(order, Reply)
        self.nbytes = replies[0].nbytes
        sums = [r.weights for r in replies]
        if order.variant != ALONE and max(sums) - min(sums) > 1e-6 * max(1.0, *map(abs, sums)):
            raise BenchError(f"{self.name!r} left ranks with different weights: their sums are {sums}")
        return Timeline(
            source=self.name,
            policy=order.variant,
            spans=tuple(span for r in replies for span in r.spans),
            boundaries={f"worker {rank}": r.boundaries for rank, r in enumerate(replies)},
        )

    def warm_up(self, tell: Tell) -> None:
        """A short trial of every variant, which also warms up what warms up once; decides which ones get a row."""
        trials: dict[str, list[float]] = {variant: [] for variant in self.system.variants}
        choosing = not self.system.each and len(self.system.variants) > 1
        for _ in range(2 if choosing else 1):
            for variant in self.system.variants:
                tell(f"trying {self.name} {variant}")
                order = self._order(variant, TRIAL if choosing else 1)
                if variant == AUTO:
                    order = replace(order, warmup=AUTO_WARMUP)
                trials[variant] += progress(self.burst(order))
        kept = list(trials) if self.system.each else [min(trials, key=lambda v: statistics.median(trials[v]))]
        self._seen = {variant: _Seen() for variant in kept}

    def measure(self, variant: str, iterations: int) -> None:
        """Some iterations that count."""
        before = read_cpu()
        line = self._watched(self._order(variant, iterations))
        seen = self._seen[variant]
        seen.idle.append(idle_share(before, read_cpu()))
        seen.times += progress(line)
        alpha = overlap(line)
        if alpha is not None:
            seen.alphas.append(alpha)

    def picture(self, variant: str) -> Timeline:
        """A timeline to look at: transfers as the system saw them itself, or else as the links saw them."""
        order = self._order(variant, TRIAL)
        return self._watched(order) if self.system.spans is None else self.burst(replace(order, trace=True))

    def notes(self) -> list[str]:
        """What the system decided about this workload, with its name."""
        return [f"{self.name}: {line}" for line in self.verdicts(self._heard)]

    def results(self, floor: float, paced: float) -> list[SystemResult]:
        """All that was seen, a row for each variant that has one."""
        network = self._stage.network(self.workers)
        bound = max(floor, transfer_time(self.system.pattern, self.nbytes, network))
        return [
            SystemResult(
                name=self.name,
                variant=variant,
                policy=variant if self.system.each else self.name,
                machines=self.workers + self._hubs,
                workers=self.workers,
                iteration_s=Times.of(seen.times),
                floor_s=floor,
                paced_s=paced,
                bound_s=bound,
                alpha=statistics.fmean(seen.alphas) if seen.alphas else None,
                cpu_idle=statistics.fmean(seen.idle),
            )
            for variant, seen in self._seen.items()
        ]

    def _order(self, variant: str, iterations: int) -> Order:
        assert self._workload is not None
        return Order(workload=self._workload, variant=variant, warmup=WARMUP, iterations=iterations)

    def _watched(self, order: Order) -> Timeline:
        lab = self._stage.lab
        with Watch(lab) as watch:
            line = self.burst(order)
        nodes = {host: f"worker {i}" for i, host in enumerate(lab.hosts[: self.workers])}
        first, last = min(b[0] for b in line.boundaries.values()), max(b[-1] for b in line.boundaries.values())
        links = [s for s in link_spans(watch.uses, nodes, self._stage.measured) if first <= s.start < last]
        return replace(line, spans=(*line.spans, *links))


def overlap(line: Timeline) -> float | None:
    """Alpha: what share of the shorter of computing and communicating an average worker hid behind the other.

    None where the shorter is too short to tell it from the loop's own time.
    """
    iteration = statistics.fmean((bounds[-1] - bounds[0]) / (len(bounds) - 1) for bounds in line.boundaries.values())
    both = (line.communication_time, line.compute_time)
    return (sum(both) - iteration) / min(both) if min(both) > LEAST_SHARE * iteration else None
