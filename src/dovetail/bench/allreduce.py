"""`bench allreduce`: the time to sum one tensor over all workers, by size and system, beside what physics allows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from dovetail.bench.bounds import RING, SHUFFLE, TWO_LEVEL, Groups, Network, groups_of, hubs_of, transfer_time
from dovetail.bench.crew import Crew
from dovetail.bench.mpi_crew import MpiCrew, mpi_missing
from dovetail.bench.orders import GLOO, MPI, MPI_RING, SumOrder, SumPost, SumReply
from dovetail.bench.predict import STARTUP, cluster_of
from dovetail.bench.probing import describe_groups, probe, probing_crew
from dovetail.bench.result import AllreduceResult, ReduceResult, SizeResult, Times
from dovetail.bench.stage import Site, Stage, Tell, built
from dovetail.errors import BadInput
from dovetail.plan.linkcost import both_ways
from dovetail.plan.patterns import PATTERNS
from dovetail.plan.policies import AUTO

OTHERS = {GLOO: RING, MPI: RING, MPI_RING: RING}  # whose bytes are counted for systems that are not ours
OURS = {"sharded": SHUFFLE, **{pattern: pattern for pattern in PATTERNS}}
SYSTEMS = (*OTHERS, *OURS, AUTO)
LEAST, MOST = 5, 1000  # sums of one size
BUDGET = 4.0  # seconds for one size, if that is enough for the least
TURNS = 5  # systems take turns this often, so that what else the machine does meets them all


def bench_allreduce(
    site: Site, *, sizes: Sequence[int], systems: Sequence[str], tell: Tell = lambda _: None
) -> AllreduceResult:
    """Every size with every system, in turns."""
    for name in systems:
        if name not in SYSTEMS:
            raise BadInput(f"system {name!r} is not known; choose among {', '.join(SYSTEMS)}")
    if not systems or not sizes or min(sizes) < 4:
        raise BadInput("give at least one system, and sizes of 4 bytes (one number) or more")
    with ExitStack() as stack:
        hubs = max(hubs_of(_pattern(name), range(site.racks)) for name in systems)
        stage = stack.enter_context(built(site, hubs=hubs, tell=tell))
        network = stage.network(site.workers)
        names, notes = _able(systems, stage)
        groups = None
        if site.racks > 1 and not {TWO_LEVEL, AUTO}.isdisjoint(names):
            tell("probing")
            with probing_crew(stage, number=len(names)) as prober:
                probed = probe(prober, stage)
            groups = probed.groups
            notes.append(describe_groups(groups, probed.exact))
        crews = {name: stack.enter_context(_crew(stage, name, number, groups)) for number, name in enumerate(names)}
        for crew in crews.values():
            crew.hear(SumReply)
        rows: dict[str, list[SizeResult]] = {name: [] for name in names}
        for nbytes in sizes:
            tasks = [_Task.of(name, crew, nbytes, network) for name, crew in crews.items()]
            for turn in range(TURNS):
                for task in tasks:
                    tell(f"{task.name}, {nbytes} bytes, turn {turn + 1} of {TURNS}")
                    task.take_turn()
            for task in tasks:
                rows[task.name].append(task.result())
        return AllreduceResult(
            bench="allreduce",
            workers=site.workers,
            rate=site.rate,
            measured_rate=stage.measured,
            systems=tuple(
                ReduceResult(
                    name=name,
                    machines=site.workers + hubs_of(_pattern(name), network.racks),
                    sizes=tuple(rows[name]),
                )
                for name in names
            ),
            notes=(*stage.notes, *notes),
        )


def best_pattern(network: Network, nbytes: int) -> str:
    """The pattern without dedicated hubs that is fastest for `nbytes` by the cost models; the simpler of equals."""
    patterns = [p for p in PATTERNS if not hubs_of(p, network.racks)]
    cluster = cluster_of(network, SHUFFLE, startup=STARTUP)
    return min(patterns, key=lambda pattern: both_ways(cluster, pattern).time(nbytes))


def _pattern(name: str) -> str:
    return OTHERS.get(name) or OURS.get(name) or SHUFFLE


def _able(systems: Sequence[str], stage: Stage) -> tuple[list[str], list[str]]:
    """The systems that can run here, and a line about each that cannot."""
    reasons = {name: "it cannot keep to a rate" for name in OTHERS if stage.limit}
    missing = mpi_missing()
    if missing:
        reasons |= {MPI: missing, MPI_RING: missing}
    names = [name for name in systems if name not in reasons]
    if not names:
        raise BadInput("; ".join(f"{name} cannot run: {reasons[name]}" for name in systems))
    return names, [f"{name} left out: {reasons[name]}" for name in systems if name in reasons]


def _crew(stage: Stage, name: str, number: int, probed: Groups | None) -> Crew:
    workers, pattern = stage.site.workers, _pattern(name)
    if name in (MPI, MPI_RING):
        return MpiCrew(stage.lab, workers=workers, ring=name == MPI_RING)
    groups = probed if name in (TWO_LEVEL, AUTO) else groups_of(pattern, stage.network(workers).racks)
    post = SumPost(hubs=stage.hubs_for(pattern, workers), groups=groups, rate=stage.limit)
    return Crew(stage.lab, name, "dovetail.bench.allreduce_worker", post, workers=workers, number=number)


@dataclass(frozen=True, slots=True)
class _Task:
    """One size of one system."""

    name: str
    crew: Crew
    nbytes: int
    pattern: str
    bound: float
    seconds: list[float] = field(default_factory=list)  # of each sum, as the slowest rank saw it

    @staticmethod
    def of(name: str, crew: Crew, nbytes: int, network: Network) -> _Task:
        pattern = best_pattern(network, nbytes) if name == AUTO else _pattern(name)
        return _Task(name, crew, nbytes, pattern, transfer_time(pattern, nbytes, network))

    def take_turn(self) -> None:
        times = max(LEAST, min(MOST, round(BUDGET / max(self.bound, 1e-6))))
        aggregation = self.name if self.name in OTHERS else self.pattern
        order = SumOrder(aggregation=aggregation, nbytes=self.nbytes // 4 * 4, times=-(-times // TURNS))
        replies = self.crew.ask(order, SumReply)
        self.seconds.extend(max(both) for both in zip(*(r.seconds for r in replies), strict=True))

    def result(self) -> SizeResult:
        seen = Times.of(self.seconds)
        return SizeResult(
            nbytes=self.nbytes,
            pattern=self.pattern,
            median_s=seen.median,
            min_s=seen.min,
            max_s=seen.max,
            bound_s=self.bound,
        )
