"""`bench allreduce`: the time to sum one tensor over all workers, by size and system, beside what physics allows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from dovetail.bench.bounds import HUB, RING, SHUFFLE, transfer_time
from dovetail.bench.crew import Crew
from dovetail.bench.orders import GLOO, SumOrder, SumPost, SumReply
from dovetail.bench.result import AllreduceResult, ReduceResult, SizeResult, Times
from dovetail.bench.stage import Site, Stage, Tell, built
from dovetail.errors import BadInput

# name -> (what the worker calls it, whose bytes are counted, dedicated hubs)
SYSTEMS = {GLOO: (GLOO, RING, 0), "sharded": ("shuffle", SHUFFLE, 0), "hub": ("hub", HUB, 1)}
LEAST, MOST = 5, 200  # sums of one size
BUDGET = 4.0  # seconds for one size, if that is enough for the least


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
        hubs = max(SYSTEMS[name][2] for name in systems)
        stage = stack.enter_context(built(site, hubs=hubs, tell=tell))
        notes, names = list(stage.notes), list(systems)
        if stage.limit and GLOO in names:
            names.remove(GLOO)
            notes.append("gloo left out: it cannot keep to a rate")
        crews = {name: stack.enter_context(_crew(stage, name, number)) for number, name in enumerate(names)}
        for crew in crews.values():
            crew.hear(SumReply)
        rows: dict[str, list[SizeResult]] = {name: [] for name in names}
        for nbytes in sizes:
            for name, crew in crews.items():
                tell(f"{name}, {nbytes} bytes")
                bound = transfer_time(SYSTEMS[name][1], nbytes, stage.network(site.workers))
                rows[name].append(_measure(crew, nbytes, bound))
        return AllreduceResult(
            bench="allreduce",
            workers=site.workers,
            rate=site.rate,
            measured_rate=stage.measured,
            systems=tuple(
                ReduceResult(name=name, machines=site.workers + SYSTEMS[name][2], sizes=tuple(rows[name]))
                for name in names
            ),
            notes=tuple(notes),
        )


def _crew(stage: Stage, name: str, number: int) -> Crew:
    aggregation, _, hubs = SYSTEMS[name]
    post = SumPost(aggregation=aggregation, hubs=stage.hubs if hubs else (), rate=stage.limit)
    workers = stage.site.workers
    return Crew(stage.lab, name, "dovetail.bench.allreduce_worker", post, workers=workers, number=number)


def _measure(crew: Crew, nbytes: int, bound: float) -> SizeResult:
    times = max(LEAST, min(MOST, round(BUDGET / max(bound, 1e-6))))
    replies = crew.ask(SumOrder(nbytes=nbytes // 4 * 4, times=times), SumReply)
    slowest = [max(both) for both in zip(*(r.seconds for r in replies), strict=True)]
    seen = Times.of(slowest)
    return SizeResult(nbytes=nbytes, median_s=seen.median, min_s=seen.min, max_s=seen.max, bound_s=bound)
