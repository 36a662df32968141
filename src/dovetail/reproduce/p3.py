"""P3 (Priority-based Parameter Propagation): figures 4, 6, 7, 10 and 12."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from dovetail.bench.models import profile_of
from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.base import per_parameter
from dovetail.plan.first_use import first_use
from dovetail.plan.policies import run_passes
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.plan.slices import MAX_ELEMENTS, slices
from dovetail.reproduce.record import Line, Study, percent
from dovetail.simulate.run import simulate
from dovetail.timeline import WAIT
from dovetail.trace.graph import Op, Param, Profile

UNIT = 1_000_000  # bytes that take one unit of time in figures 4 and 6
STARTUP = 5e-6  # seconds a message
UPDATE_RATE = 5e8  # bytes per second and core that a server on a CPU sums and updates
SPLIT_ABOVE = 1_000_000  # parameters; MXNet's KVStore splits a larger array evenly over the servers
GBIT = 1e9 / 8
# Seconds of computation with which the network is just busy all the time where the paper says P3 stops scaling
# (ResNet-50: 4 Gbit/s, VGG-19: 15 Gbit/s); the other models' scale only moves the bandwidth of the largest gain.
COMPUTE = {"resnet50": 0.307, "inception_v3": 0.43, "vgg19": 0.46, "seq2seq": 0.20}
SWEEP = (1, 2, 3, 4, 6, 8, 12, 20)


def run() -> Study:
    """All five figures."""
    return Study(
        paper="p3",
        lines=(*_figure_4(), *_figure_6(), *_figure_7(), *_figure_10(), *_figure_12()),
        assumptions=(
            "servers on the workers (shuffle), 5 us per message; a server sums and updates 0.5 GB/s, which of 0.25, "
            "0.5, 1 and 4 comes nearest to figures 7 and 10 as a whole: they are no independent check of it",
            "the paper gives no batch times: "
            + ", ".join(f"{name} {seconds:g} s" for name, seconds in COMPUTE.items())
            + ", from where it says that P3 stops scaling; times per layer follow its FLOPs",
            "the baseline sends each array as one piece, arrays of more than 1,000,000 parameters in one piece a "
            "server, in the order gradients appear, and sums a piece when all of it is there",
            "Sockeye is a two-layer LSTM encoder and decoder with the paper's data set's vocabularies",
        ),
    )


def chain(sizes: Sequence[int], seconds: float) -> Profile:
    """Layers of equal forward and backward time."""
    ops: list[Op] = []
    for i in range(len(sizes)):
        ops.append(Op(f"forward {i}", seconds, (ops[-1].name,) if ops else (), (f"layer {i}",)))
    for i in reversed(range(len(sizes))):
        ops.append(Op(f"backward {i}", seconds, (ops[-1].name,), (), f"layer {i}"))
    return Profile(tuple(ops), tuple(Param(f"layer {i}", n) for i, n in enumerate(sizes)))


def gap(*, urgent: bool) -> float:
    """Figure 4: units between two iterations of three layers, forward and backward 1 and synchronisation 2 each."""
    profile = chain([2 * UNIT] * 3, 1.0)
    plan = _plain(profile, urgent=urgent, chunk_bytes=UNIT // 100)
    cluster = Cluster.uniform(workers=2, link=Link(startup=0.0, bandwidth=float(UNIT)))
    timeline = simulate(profile, plan, cluster, hub_update_rate=float("inf"))
    # Spans that begin at the last start of an iteration: the wait for its first layer.
    start = timeline.boundaries["worker 0"][-2]
    return sum(s.end - s.start for s in timeline.spans if s.lane == WAIT and s.start == start)


def synchronisation(*, sliced: bool) -> float:
    """Figure 6: units to push, update and pull three layers of 1, 3 and 1 units."""
    profile = chain([UNIT, 3 * UNIT, UNIT], 0.0)
    plan = _plain(profile, urgent=False, chunk_bytes=UNIT if sliced else 3 * UNIT, aggregation="hub")
    link = Link(startup=0.0, bandwidth=float(UNIT))
    cluster = Cluster(workers=(Host(name="worker 0", link=link),), hubs=(Host(name="hub 0", link=link, cores=3),))
    return simulate(profile, plan, cluster, hub_update_rate=float(UNIT)).iteration_time


def _plain(profile: Profile, *, urgent: bool, chunk_bytes: int, aggregation: str = "shuffle") -> Plan:
    made = sorted(profile.params, key=lambda p: profile.production[p.name])
    order = profile.first_use if urgent else dict.fromkeys(profile.first_use, 0)
    transfers = tuple(Transfer(REDUCE, ((p.name, 0, p.nbytes),), order[p.name]) for p in made)
    return Plan(
        policy="figure",
        params=profile.params,
        transfers=transfers,
        aggregation=aggregation,
        update="hub",
        chunk_bytes=chunk_bytes,
    )


def kvstore(profile: Profile, workers: int) -> Plan:
    """MXNet's baseline: whole arrays by production; a large one as one piece for each server."""
    start = per_parameter(profile, policy="mxnet")
    transfers: list[Transfer] = []
    for t in start.transfers:
        pieces = workers if t.nbytes > 4 * SPLIT_ABOVE else 1
        transfers.extend(t.split(-(-t.nbytes // pieces)))
    largest = max(t.nbytes for t in transfers)
    return Plan(policy="mxnet", params=profile.params, transfers=tuple(transfers), update="hub", chunk_bytes=largest)


def sliced(profile: Profile, cluster: Cluster, *, urgent: bool = True, elements: int = MAX_ELEMENTS) -> Plan:
    """P3, or its slices alone in the order gradients appear."""
    cut = partial(slices, max_elements=elements)
    plan = run_passes(per_parameter(profile), profile, cluster, (cut, first_use) if urgent else (cut,))
    return Plan(
        policy="p3",
        params=plan.params,
        transfers=plan.transfers,
        update="hub",
        chunk_bytes=max(64, min(4 * elements, max(p.nbytes for p in profile.params))),
    )


def times(model: str, gbit: float, workers: int = 4, elements: int = MAX_ELEMENTS) -> tuple[float, float, float]:
    """Seconds an iteration of the baseline, of slices alone, and of P3."""
    profile = profile_of(model, compute=COMPUTE[model])
    cluster = Cluster.uniform(workers=workers, link=Link(startup=STARTUP, bandwidth=gbit * GBIT))
    plans = (
        (kvstore(profile, workers), True),
        (sliced(profile, cluster, urgent=False, elements=elements), False),
        (sliced(profile, cluster, elements=elements), False),
    )
    # The baseline's few large pieces are simulated node by node: folding is exact only for many small chunks.
    first, second, third = (
        simulate(profile, plan, cluster, iterations=2, hub_update_rate=UPDATE_RATE, full=full).iteration_time
        for plan, full in plans
    )
    return first, second, third


def _figure_4() -> Iterable[Line]:
    for name, paper, urgent in (("in order of production", 4.0, False), ("preemptive slices", 2.0, True)):
        yield Line(where="figure 4", what=f"gap, {name}", paper=paper, ours=gap(urgent=urgent), unit="units")


def _figure_6() -> Iterable[Line]:
    for name, paper, cut in (("whole layers", 10.0, False), ("slices", 7.0, True)):
        yield Line(where="figure 6", what=f"synchronisation, {name}", paper=paper, ours=synchronisation(sliced=cut))


def _figure_7() -> Iterable[Line]:
    base, _, p3 = times("resnet50", 4)
    yield Line(where="figure 7", what="ResNet-50 at 4 Gbit/s, P3", paper=26, ours=percent(p3, base), unit="%")
    base, alone, _ = times("vgg19", 30)
    yield Line(where="figure 7", what="VGG-19 at 30 Gbit/s, slices", paper=49, ours=percent(alone, base), unit="%")
    base, _, p3 = times("vgg19", 15)
    yield Line(where="figure 7", what="VGG-19 at 15 Gbit/s, P3", paper=66, ours=percent(p3, base), unit="%")
    for model, name, paper in (("inception_v3", "Inception v3", 18), ("seq2seq", "Sockeye", 38)):
        found = [(percent(p3, base), gbit) for gbit in SWEEP for base, _, p3 in (times(model, gbit),)]
        gain, gbit = max(found)
        yield Line(where="figure 7", what=f"{name}, most (at {gbit:g} Gbit/s)", paper=paper, ours=gain, unit="%")


def _figure_10() -> Iterable[Line]:
    for model, name, paper in (("resnet50", "ResNet-50", 0), ("vgg19", "VGG-19", 61), ("seq2seq", "Sockeye", 18)):
        base, _, p3 = times(model, 10, workers=8)
        gain = percent(p3, base)
        yield Line(where="figure 10", what=f"{name}, 8 machines, 10 Gbit/s", paper=paper, ours=gain, unit="%")


def _figure_12() -> Iterable[Line]:
    sizes = (10_000, 20_000, 50_000, 200_000, 1_000_000)
    for model, name, gbit in (("resnet50", "ResNet-50", 4), ("vgg19", "VGG-19", 15)):
        profile = profile_of(model, compute=COMPUTE[model])
        cluster = Cluster.uniform(workers=4, link=Link(startup=STARTUP, bandwidth=gbit * GBIT))
        took = {
            n: simulate(
                profile,
                sliced(profile, cluster, elements=n),
                cluster,
                iterations=1,
                hub_update_rate=UPDATE_RATE,
                full=n >= 200_000,
            ).iteration_time
            for n in sizes
        }
        best = min(took, key=lambda n: took[n])
        yield Line(where="figure 12", what=f"{name}, best slice", paper=50_000, ours=best, unit="parameters")
        worst = percent(took[best], max(took.values()))
        yield Line(where="figure 12", what=f"{name}, best over worst slice", paper=None, ours=worst, unit="%")
