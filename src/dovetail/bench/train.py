"""`bench train`: iteration times of training systems on one network, in turns, beside what physics allows."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dovetail import codec
from dovetail.bench.orders import Order, Post, Workload
from dovetail.bench.result import TrainResult
from dovetail.bench.run import TRIAL, WARMUP, Run, from_zero, progress
from dovetail.bench.stage import Site, Tell, built
from dovetail.bench.systems import ALONE, System
from dovetail.errors import BadInput
from dovetail.lab import available
from dovetail.timeline import COMPUTE, Timeline

ROUNDS = 2  # systems take turns this often, so that what else the machine does meets them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run: what is trained, by which systems, and on which network."""

    workload: Workload
    systems: tuple[System, ...]
    site: Site
    iterations: int = 10
    same_machines: bool = False  # a system with hubs gets that many workers fewer

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise BadInput(f"{self.iterations} iterations; give 1 or more")
        if self.workload.compute is not None and self.workload.compute < 0:
            raise BadInput(f"compute is {self.workload.compute} s; give 0 or more, or real")
        if not self.workload.scale > 0:
            raise BadInput(f"scale is {self.workload.scale}; give a number above 0")
        if any(self.workers_of(system) < 1 for system in self.systems):
            raise BadInput("--same-machines takes a worker from the hub's system; give 2 workers or more")

    def workers_of(self, system: System) -> int:
        """How many of the site's hosts compute."""
        return self.site.workers - (system.hubs if self.same_machines else 0)


def bench_train(setup: Setup, *, tell: Tell = lambda _: None, save: Path | None = None) -> TrainResult:
    """Run all systems of the setup and compare; `tell` hears what happens, `save` is a folder for timelines."""
    systems = setup.systems
    left_out: tuple[str, ...] = ()
    if setup.site.rate and not available()[0]:
        systems = tuple(s for s in setup.systems if s.limits_itself)
        left_out = tuple(f"{s.name} left out: it cannot keep to a rate" for s in setup.systems if not s.limits_itself)
        if not systems:
            raise BadInput(
                f"none of these systems keeps to a rate by itself, and a lab cannot be made: {available()[1]}"
            )
    with ExitStack() as stack:
        stage = stack.enter_context(built(setup.site, hubs=max(s.hubs for s in systems), tell=tell))
        tell("starting the systems")
        runs: list[Run] = []
        for number, system in enumerate(systems):
            hubs = stage.hubs if system.hubs else ()
            post = Post(system=system.name, workload=setup.workload, hubs=hubs, rate=stage.limit)
            workers = setup.workers_of(system)
            runs.append(stack.enter_context(Run(stage, system, post, workers=workers, number=number)))
        for run in runs:
            run.wait_ready()
        for run in runs:
            run.choose_variant(tell)
        floors: dict[int, list[Timeline]] = {}
        rounds = min(ROUNDS, setup.iterations)
        for turn in range(rounds):
            _add_floors(floors, runs, tell)
            count = setup.iterations * (turn + 1) // rounds - setup.iterations * turn // rounds
            for run in runs:
                tell(f"training with {run.system.name}, round {turn + 1} of {rounds}")
                run.measure(count)
        if save is not None:
            save.mkdir(parents=True, exist_ok=True)
            for run in runs:
                tell(f"recording {run.system.name}")
                codec.save(from_zero(run.picture()), save / f"{run.system.name}.json")
        return TrainResult(
            bench="train",
            model=setup.workload.model,
            scale=setup.workload.scale,
            workers=setup.site.workers,
            rate=setup.site.rate,
            measured_rate=stage.measured,
            bytes=runs[0].nbytes,
            compute_s=_computing(floors[max(floors)][-1]) if setup.workload.compute is None else setup.workload.compute,
            systems=tuple(run.result(_median(floors[run.workers])) for run in runs),
            notes=stage.notes + left_out,
        )


def _add_floors(floors: dict[int, list[Timeline]], runs: list[Run], tell: Tell) -> None:
    """By number of workers: all compute and update at once, and nothing travels."""
    for workers, run in {run.workers: run for run in runs}.items():
        tell(f"computing alone, {workers} workers")
        line = run.burst(Order(variant=ALONE, warmup=WARMUP, iterations=TRIAL))
        floors.setdefault(workers, []).append(line)


def _median(lines: list[Timeline]) -> float:
    return statistics.median(seconds for line in lines for seconds in progress(line))


def _computing(line: Timeline) -> float:
    return replace(line, spans=tuple(s for s in line.spans if s.lane == COMPUTE)).compute_time
