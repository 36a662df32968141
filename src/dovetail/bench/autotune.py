"""`bench autotune`: one host's link is cut and later restored in mid-training; how soon and how well is that met?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dovetail.bench.crew import Crew
from dovetail.bench.orders import TuneOrder, TunePost, TuneReply, Workload
from dovetail.bench.result import ENOUGH, AutotuneResult, StateResult, Times
from dovetail.bench.stage import Site, Tell, built
from dovetail.errors import BadInput
from dovetail.lab import Lab
from dovetail.plan.tuning import fill

WARMUP = 2  # steps of a schedule that do not count
STATIC = 6  # steps by which a fixed schedule is judged
TURNS, TURN = 4, 10  # tuned and untuned training in turns on the steady network: so often, so many steps
BEFORE = 12  # tuned steps before the cut
WINDOW = 3  # steps whose median says whether it has


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The last host's link is cut to `cut` of its rate; training goes on for `steps` after each change."""

    workload: Workload
    site: Site
    cut: float = 0.4
    steps: int = 40
    grace: int = 25  # steps after a change in which training may recover

    def __post_init__(self) -> None:
        if self.site.workers < 3 or not self.site.rate > 0:
            raise BadInput(f"{self.site.workers} workers at {self.site.rate} bytes/s; give 3 or more, and a rate")
        if not 0 < self.cut < 1 or not 0 < self.grace < self.steps:
            raise BadInput(
                f"a cut to {self.cut} and {self.steps} steps of which {self.grace} may pass; "
                "give a cut between 0 and 1, and more steps than may pass"
            )


def bench_autotune(setup: Setup, *, tell: Tell = lambda _: None) -> AutotuneResult:
    """Tuned training through a cut and back, beside every fixed schedule worth having in each state."""
    site, victim = setup.site, setup.site.workers - 1
    with built(site, hubs=0, tell=tell) as stage:
        lab = stage.lab
        if not isinstance(lab, Lab):
            raise BadInput(f"links can be cut in a lab only, and there is none: {stage.notes[0]}")
        post = TunePost(workload=setup.workload)
        with Crew(lab, "autotune", "dovetail.bench.autotune_worker", post, workers=site.workers, number=0) as crew:
            crew.hear(TuneReply)
            run = _Run(crew, tell)
            steady = _steady(run)
            schedules = _schedules(site.workers, victim, setup.cut)
            fixed_whole = {name: run.fixed(name, schedules[name]) for name in ("even", "filled")}
            lab.set_rate(victim, site.rate * setup.cut)
            fixed_cut = {name: run.fixed(name, shares) for name, shares in schedules.items()}
            lab.set_rate(victim, site.rate)
            run.steps("tuned, before the cut", TuneOrder(tuned=True, steps=BEFORE))
            lab.set_rate(victim, site.rate * setup.cut)
            cut = run.steps("tuned, after the cut", TuneOrder(tuned=True, steps=setup.steps))
            lab.set_rate(victim, site.rate)
            back = run.steps("tuned, restored", TuneOrder(tuned=True, steps=setup.steps))
            return AutotuneResult(
                bench="autotune",
                model=setup.workload.model,
                workers=site.workers,
                rate=site.rate,
                measured_rate=stage.measured,
                bytes=round(sum(run.loads) / (2 * (site.workers - 1))),
                cut=setup.cut,
                grace=setup.grace,
                states=(
                    _state("cut", cut, fixed_cut, setup.grace),
                    _state("restored", back, fixed_whole, setup.grace),
                ),
                steady_ratio=Times.of(steady),
                balance=max(run.loads) / min(run.loads),
                notes=(*stage.notes, *crew.verdicts()),
            )


class _Run:
    """Orders to the crew; `loads` are the bytes that each rank sent in the last step."""

    def __init__(self, crew: Crew, tell: Tell) -> None:
        self._crew, self._tell = crew, tell
        self.loads: Sequence[float] = ()

    def steps(self, what: str, order: TuneOrder) -> list[float]:
        """Seconds of each step, from the last rank's beginning to the last rank's next."""
        self._tell(what)
        replies = self._crew.ask(order, TuneReply)
        self.loads = replies[0].loads
        begun = [max(instants) for instants in zip(*(r.instants for r in replies), strict=True)]
        return [after - before for before, after in pairwise(begun)]

    def fixed(self, name: str, shares: tuple[float, ...] | None) -> float:
        """The median step under a fixed schedule in the network's present state."""
        order = TuneOrder(tuned=False, shares=shares, steps=WARMUP + STATIC)
        return statistics.median(self.steps(f"fixed: {name}", order)[WARMUP:])


def _schedules(workers: int, victim: int, cut: float) -> dict[str, tuple[float, ...] | None]:
    """Fixed schedules: even, in proportion to the links of the cut network, and the optimum for it."""
    speeds = [cut if host == victim else 1.0 for host in range(workers)]
    return {
        "even": None,
        "by speed": tuple(speed / sum(speeds) for speed in speeds),
        "filled": tuple(fill(speeds, extra=workers - 2).tolist()),
    }


def _steady(run: _Run) -> list[float]:
    """Tuned over untuned step times on the network as it is, turn by turn, in changing order."""
    ratios = []
    for turn in range(-1, TURNS):
        found = {}
        for tuned in (True, False) if turn % 2 else (False, True):
            steps = run.steps(f"steady, {'tuned' if tuned else 'untuned'}", TuneOrder(tuned=tuned, steps=TURN))
            found[tuned] = statistics.median(steps[1:])
        if turn >= 0:
            ratios.append(found[True] / found[False])
    return ratios


def _state(name: str, tuned: list[float], fixed: dict[str, float], grace: int) -> StateResult:
    best = min(fixed, key=lambda schedule: fixed[schedule])
    after = statistics.median(tuned[grace:])
    return StateResult(
        state=name,
        untuned_s=fixed["even"],
        best_s=fixed[best],
        best=best,
        tuned_s=Times.of(tuned[grace:]),
        of_best=fixed[best] / after,
        recovered_after=recovered(tuned, fixed[best] / ENOUGH),
    )


def recovered(steps: Sequence[float], limit: float) -> int | None:
    """How many steps passed before the median of the next few stayed within `limit` to the end; None = it never did."""
    medians = [statistics.median(steps[i : i + WINDOW]) for i in range(len(steps) - WINDOW + 1)]
    late = [i for i, seconds in enumerate(medians) if seconds > limit]
    first = late[-1] + 1 if late else 0
    return first if first < len(medians) else None
