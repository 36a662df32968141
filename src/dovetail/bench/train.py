"""`bench train`: iteration times of training systems on one network, in turns, beside what physics allows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dovetail import codec
from dovetail.bench.bounds import groups_of, hubs_of
from dovetail.bench.orders import Post, Workload
from dovetail.bench.predict import fit_startup, with_predictions
from dovetail.bench.result import TrainResult
from dovetail.bench.run import Run, from_zero, paces, progress
from dovetail.bench.stage import Site, Stage, Tell, built
from dovetail.bench.systems import System
from dovetail.errors import BadInput
from dovetail.lab import available
from dovetail.timeline import COMPUTE, Timeline

# Systems take turns, so that what else the machine does meets them all.
LEAST_TURNS, TURN = 2, 4  # at least so many, of about so many iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run: what is trained, by which systems, and on which network."""

    workload: Workload
    systems: tuple[System, ...]
    site: Site
    iterations: int = 10
    turns: int | None = None  # what suits the iterations
    same_machines: bool = False  # a system with hubs gets that many workers fewer
    predict: bool = False  # simulate each row as well

    def __post_init__(self) -> None:
        if self.iterations < 1 or (self.turns is not None and self.turns < 1):
            raise BadInput(f"{self.iterations} iterations in {self.turns} turns; give 1 or more")
        if self.workload.compute is not None and self.workload.compute < 0:
            raise BadInput(f"compute is {self.workload.compute} s; give 0 or more, or real")
        if not self.workload.scale > 0:
            raise BadInput(f"scale is {self.workload.scale}; give a number above 0")
        if any(self.workers_of(system) < 1 for system in self.systems):
            raise BadInput("--same-machines takes a worker from the hub's system; give 2 workers or more")
        if self.predict and self.workload.compute is None:
            raise BadInput("--predict knows the times of emulated layers only; give --compute SECONDS instead of real")

    def hubs_of(self, system: System) -> int:
        """Machines that the system needs beside the workers."""
        return hubs_of(system.pattern, range(self.site.racks))

    def workers_of(self, system: System) -> int:
        """How many of the site's hosts compute."""
        return self.site.workers - (self.hubs_of(system) if self.same_machines else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """A setup's systems on their stage, ready to train one workload after the other."""

    stage: Stage
    runs: list[Run]
    startup: float | None  # seconds, where predictions are asked for
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Floors:
    """Iterations without communication: on their own, and while other streams keep the links busy."""

    alone: list[Timeline] = field(default_factory=list)
    disturbed: list[Timeline] = field(default_factory=list)

    @property
    def floor(self) -> float:
        """Seconds an iteration, each worker for itself."""
        return statistics.median(seconds for line in self.alone for seconds in progress(line))

    @property
    def pace(self) -> float:
        """Seconds an iteration with busy links, in step with the slowest worker."""
        return max(self.floor, _mean(paces(line) for line in self.disturbed or self.alone))


def _mean(lists: Iterable[list[float]]) -> float:
    return statistics.fmean(seconds for found in lists for seconds in found)


def bench_train(setup: Setup, *, tell: Tell = lambda _: None, save: Path | None = None) -> TrainResult:
    """Run all systems of the setup and compare; `tell` hears what happens, `save` is a folder for timelines."""
    with assembled(setup, tell=tell) as cast:
        return compared(setup, cast, tell=tell, save=save)


@contextmanager
def assembled(setup: Setup, *, tell: Tell) -> Iterator[Cast]:
    """The network and the processes that the setup asks for."""
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
        stage = stack.enter_context(built(setup.site, hubs=max(map(setup.hubs_of, systems)), tell=tell))
        tell("starting the systems")
        runs = [stack.enter_context(_run(setup, stage, system, number)) for number, system in enumerate(systems)]
        for run in runs:
            run.wait_ready()
        startup, *fitted = fit_startup(stage, number=len(runs), tell=tell) if setup.predict else (None,)
        yield Cast(stage=stage, runs=runs, startup=startup, notes=(*stage.notes, *left_out, *fitted))


def compared(setup: Setup, cast: Cast, *, tell: Tell, save: Path | None = None) -> TrainResult:
    """Train the setup's workload with all systems, in turns."""
    runs, startup = cast.runs, cast.startup
    for run in runs:
        run.take(setup.workload)
        run.warm_up(tell)
    floors = _measure(setup, runs, tell)
    if save is not None:
        _save(runs, save, tell)
    rows = [row for run in runs for row in run.results(floors[run.workers].floor, floors[run.workers].pace)]
    computing = _computing(floors[max(floors)].alone[-1])
    result = TrainResult(
        bench="train",
        model=setup.workload.model,
        scale=setup.workload.scale,
        workers=setup.site.workers,
        rate=setup.site.rate,
        measured_rate=cast.stage.measured,
        bytes=runs[0].nbytes,
        compute_s=computing if setup.workload.compute is None else setup.workload.compute,
        systems=tuple(rows),
        startup_s=startup,
        network=cast.stage.network(setup.site.workers),
        notes=(*cast.notes, *(line for run in runs for line in run.notes())),
    )
    if startup is None:
        return result
    tell("predicting")
    return with_predictions(result, setup.systems)


def _run(setup: Setup, stage: Stage, system: System, number: int) -> Run:
    workers = setup.workers_of(system)
    post = Post(
        system=system.name,
        hubs=stage.hubs_for(system.pattern, workers),
        groups=groups_of(system.pattern, stage.network(workers).racks),
        rate=stage.limit,
    )
    return Run(stage, system, post, workers=workers, number=number)


def _measure(setup: Setup, runs: list[Run], tell: Tell) -> dict[int, Floors]:
    """Everybody's iterations that count, in turns; gives the floors by number of workers."""
    one_of_each = {run.workers: run for run in runs}
    floors = {workers: Floors() for workers in one_of_each}
    rounds = min(setup.turns or max(LEAST_TURNS, setup.iterations // TURN), setup.iterations)
    for turn in range(rounds):
        for workers, run in one_of_each.items():
            tell(f"computing alone, {workers} workers")
            floors[workers].alone.append(run.alone())
            if setup.predict:
                floors[workers].disturbed.append(run.disturbed())
        count = setup.iterations * (turn + 1) // rounds - setup.iterations * turn // rounds
        for run in runs:
            for variant in run.variants:
                tell(f"training with {run.name} {variant}, round {turn + 1} of {rounds}")
                run.measure(variant, count)
    return floors


def _save(runs: list[Run], folder: Path, tell: Tell) -> None:
    """A timeline a row: `system.json`, or `system-policy.json` where the system has several."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        for variant in run.variants:
            tell(f"recording {run.name} {variant}")
            name = run.name if len(run.variants) == 1 else f"{run.name}-{variant}"
            codec.save(from_zero(run.picture(variant)), folder / f"{name}.json")


def _computing(line: Timeline) -> float:
    return replace(line, spans=tuple(s for s in line.spans if s.lane == COMPUTE)).compute_time
