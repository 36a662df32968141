"""`bench overhead`: what submitting and waiting add to a step that only computes."""

from __future__ import annotations

from dovetail.bench.crew import Crew
from dovetail.bench.orders import OverheadOrder, OverheadPost, OverheadReply
from dovetail.bench.result import Middle, OverheadResult, Times
from dovetail.bench.stage import Site, Tell, built
from dovetail.errors import BadInput

WARMUP = 2  # steps of each kind that do not count: the plan is made, memory is allocated


def bench_overhead(
    *, workers: int, params: int, step: float, rounds: int, steps: int, tell: Tell = lambda _: None
) -> OverheadResult:
    """Plain and distributed steps of a real network take turns on rank 0; the other ranks leave it the cores."""
    if workers < 2 or params < 4 or not step > 0 or rounds < 1 or steps < 1:
        raise BadInput(
            f"{rounds} rounds of {steps} steps of {step} s with {params} parameters on {workers} workers; "
            "give 2 workers and 4 parameters or more, and a round, a step and a time above 0"
        )
    with built(Site(workers=workers, rate=0.0), hubs=0, tell=tell) as stage:
        post = OverheadPost(params=params, step=step)
        plain: list[OverheadReply] = []
        distributed: list[OverheadReply] = []
        with Crew(stage.lab, "overhead", "dovetail.bench.overhead_worker", post, workers=workers, number=0) as crew:
            first = crew.hear(OverheadReply)[0]
            for turn in range(-1, rounds):
                tell("warming up" if turn < 0 else f"round {turn + 1} of {rounds}")
                # Which kind comes first changes, so that a machine that slows down or speeds up favours neither.
                for kind in (True, False) if turn % 2 else (False, True):
                    order = OverheadOrder(distributed=kind, steps=steps if turn >= 0 else WARMUP)
                    replies = crew.ask(order, OverheadReply)
                    if turn >= 0:
                        (distributed if kind else plain).append(replies[0])
        pairs = list(zip(distributed, plain, strict=True))
        return OverheadResult(
            bench="overhead",
            workers=workers,
            params=first.params,
            bytes=first.nbytes,
            plain_s=Times.of([p.wall for p in plain]),
            calls=Middle.of([(d.beside - p.beside) / p.wall for d, p in pairs]),
            wall=Middle.of([(d.wall - p.wall) / p.wall for d, p in pairs]),
            cpu=Middle.of([(d.cpu - p.cpu) / p.cpu for d, p in pairs]),
            notes=stage.notes,
        )
