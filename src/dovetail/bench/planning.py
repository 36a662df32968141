"""`bench planning`: how long planning and simulating take on this machine, and how that grows with transfers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from dovetail.bench.models import profile_of
from dovetail.bench.result import Timing
from dovetail.network.model import Cluster, Link
from dovetail.plan.auto import choose
from dovetail.plan.base import per_parameter
from dovetail.plan.first_use import first_use
from dovetail.plan.policies import make_plan, run_passes
from dovetail.plan.slices import slices
from dovetail.simulate.run import simulate
from dovetail.trace.graph import Op, Param, Profile

LINK = Link(startup=50e-6, bandwidth=125e6)
COMPUTE = 0.5  # seconds an iteration
RUNS = 2  # of each; whatever else the machine does only makes one longer
SLICES = (100_000, 50_000, 25_000, 12_500, 6_250, 3_125)  # values in each, along the curve
TAC_BLOCKS, TAC_OPS = 363, 4655  # parameters and ops of the largest model that TicTac's paper lists


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningResult:
    """`bench planning`; `curve` is one iteration of ResNet-50 on 512 workers, with more and more transfers."""

    bench: str
    rows: tuple[Timing, ...]
    curve: tuple[Timing, ...]


def bench_planning(*, tell: Callable[[str], None] = lambda _: None) -> PlanningResult:
    """Time each, the shorter of two runs, after a first one that loads what is loaded once."""
    make_plan(transformer(12), Cluster.uniform(workers=2, link=LINK), "tac")
    rows = []
    for what, count, run in _questions():
        tell(what)
        rows.append(_timed(what, count, run))
    curve = []
    network = profile_of("resnet50", compute=COMPUTE)
    many = Cluster.uniform(workers=512, link=LINK)
    for elements in SLICES:
        cut = (partial(slices, max_elements=elements), first_use)
        plan = run_passes(replace(per_parameter(network), aggregation="shuffle"), network, many, cut)
        tell(f"an iteration of {len(plan.transfers)} transfers")
        curve.append(_timed("one iteration", len(plan.transfers), partial(simulate, network, plan, many, iterations=1)))
    return PlanningResult(bench="planning", rows=tuple(rows), curve=tuple(curve))


def transformer(params: int, *, width: int = 256) -> Profile:
    """A chain of blocks of 12 parameters, as in GPT-2, with `params` in all."""
    names = [f"block{i // 12}.{i % 12}" for i in range(params)]
    sizes = [4 * (width * width if i % 2 == 0 else width) for i in range(params)]
    second = COMPUTE / (3 * sum(sizes))
    ops: list[Op] = []
    for name, size in zip(names, sizes, strict=True):
        ops.append(Op(f"{name}/forward", size * second, (ops[-1].name,) if ops else (), (name,)))
    for name, size in zip(reversed(names), reversed(sizes), strict=True):
        ops.append(Op(f"{name}/backward", 2 * size * second, (ops[-1].name,), (), name))
    return Profile(tuple(ops), tuple(Param(n, s) for n, s in zip(names, sizes, strict=True)), name="transformer")


def growth(curve: tuple[Timing, ...]) -> list[float]:
    """Nanoseconds for each n log n; a curve that grows no worse than that never rises by much."""
    return [point.seconds / (point.count * math.log2(point.count)) * 1e9 for point in curve]


def _questions() -> Iterator[tuple[str, int, Callable[[], object]]]:
    quick = partial(simulate, quick=True)
    flat = Cluster.uniform(workers=16, link=LINK)
    wide = Link(startup=LINK.startup, bandwidth=16 * LINK.bandwidth)
    clusters = {
        "16 workers": flat,
        "16 workers and a hub": Cluster.uniform(workers=16, link=LINK, hubs=1, hub_link=wide),
        "16 workers in 4 racks": Cluster.racked(racks=4, per_rack=4, link=LINK, oversubscription=4.0),
    }
    for model in (profile_of("resnet152", compute=COMPUTE), transformer(1000)):
        for where, cluster in clusters.items():
            yield f"auto, {model.name}, {where}", len(model.params), partial(choose, model, cluster, quick)
    large = _many_ops()
    yield f"tac, {len(large.ops)} ops", len(large.params), partial(make_plan, large, flat, "tac")
    resnet = profile_of("resnet50", compute=COMPUTE)
    many = Cluster.uniform(workers=512, link=LINK)
    plan = make_plan(resnet, many, "tac")
    yield (
        "an iteration of resnet50, 512 workers",
        len(resnet.params),
        partial(simulate, resnet, plan, many, iterations=1),
    )


def _many_ops() -> Profile:
    """A chain of as many ops and parameters as TicTac's largest model has."""
    profile = transformer(TAC_BLOCKS)
    extra = TAC_OPS - len(profile.ops)
    idle = [Op("idle 0", 1e-6, (profile.ops[-1].name,))]
    for i in range(1, extra):
        idle.append(Op(f"idle {i}", 1e-6, (idle[-1].name,)))
    return replace(profile, ops=(*profile.ops, *idle))


def _timed(what: str, count: int, run: Callable[[], object]) -> Timing:
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return Timing(what=what, count=count, seconds=min(taken))
