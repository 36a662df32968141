"""`simulate`: what a plan would do on a cluster, as the same Timeline that the engine measures."""

from __future__ import annotations

import random
from collections.abc import Mapping

from dovetail.errors import BadInput
from dovetail.network.model import Cluster
from dovetail.plan.linkcost import WITH_HUBS
from dovetail.plan.schedule import Plan
from dovetail.simulate.core import Rules, Simulation
from dovetail.simulate.folded import FoldedNetwork, fold
from dovetail.simulate.network import Backlog, FullNetwork, Network
from dovetail.simulate.spans import joined
from dovetail.simulate.work import compile_work, quantum_for
from dovetail.timeline import Span, Timeline
from dovetail.trace.graph import Profile

UPDATE_RATE = 4e9  # bytes of parameters that one core updates in a second
WARM_UP = 1  # iterations before the reported ones: the first starts with every parameter in place
MESSAGES = 20_000  # per iteration; above it, chunks are simulated in larger pieces
FOLDED_CHUNKS = 1024  # the same for folded workers
QUICK_MESSAGES = 6_000  # where plans are only compared


def simulate(
    profile: Profile,
    plan: Plan,
    cluster: Cluster,
    *,
    iterations: int = 3,
    seed: int = 0,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    hub_update_rate: float = UPDATE_RATE,
    full: bool = False,
    backlog: Backlog | None = None,
    quick: bool = False,
) -> Timeline:
    """The timeline of `iterations` steady iterations; equal workers are folded into one unless `full`.

    `jitter` is the standard deviation of the logarithm of an iteration's compute time, `stragglers` gives workers
    whose compute takes that many times longer. `backlog` is what senders give away before their links are free; with
    one, every node is simulated. `quick` is for comparing plans: no spans, and where nodes differ a single iteration in
    larger pieces.
    """
    slow = dict(stragglers or {})
    _check(cluster, iterations, jitter, slow, hub_update_rate)
    count = len(cluster.workers)
    folded = None if full or jitter or slow or backlog else fold(cluster, plan.aggregation)
    messages = QUICK_MESSAGES if quick else MESSAGES
    limit = FOLDED_CHUNKS if folded else max(256 if not quick else 128, messages // max(1, 2 * (count - 1)))
    iterations = 1 if quick and not folded else iterations
    quantum = quantum_for(plan, limit)
    work = compile_work(profile, plan, quantum=quantum)
    if not work.stretches:
        raise BadInput(f"the profile {profile.name!r} has no ops; trace a model, or give ops with times")
    network: Network
    if folded:
        network = FoldedNetwork(work, cluster, folded, plan.chunk_bytes)
    else:
        network = FullNetwork(work, cluster, plan.aggregation, backlog or Backlog())
    total = iterations + WARM_UP
    chance = random.Random(seed)
    pace = [
        [slow.get(w, 1.0) * (chance.lognormvariate(0.0, jitter) if jitter else 1.0) for _ in range(total)]
        for w in network.workers
    ]
    sent, returned = _shares(plan, len(cluster.workers))
    rules = Rules(
        iterations=total,
        update_at_worker=plan.update == "worker",
        update_rate=hub_update_rate,
        chunk_bytes=plan.chunk_bytes if folded else quantum,
        sent_share=sent,
        returned_share=returned,
        pace=pace,
        backlog=backlog is not None,
        record=not quick,
    )
    simulation = Simulation(work, network, rules)
    simulation.run()
    return Timeline(
        source="simulator",
        policy=plan.policy,
        spans=() if quick else _spans(simulation, network),
        boundaries={network.names[w]: tuple(b[WARM_UP - 1 :]) for w, b in enumerate(simulation.boundaries)},
        notes=_notes(count, folded is not None, quantum, plan),
    )


def _spans(simulation: Simulation, network: Network) -> tuple[Span, ...]:
    return joined(simulation.raw, network.names, since=min(b[WARM_UP - 1] for b in simulation.boundaries))


def _check(cluster: Cluster, iterations: int, jitter: float, slow: Mapping[int, float], hub_update_rate: float) -> None:
    if iterations < 1:
        raise BadInput(f"{iterations} iterations to simulate; give 1 or more")
    if not 0 <= jitter < 10:
        raise BadInput(f"jitter is {jitter!r}; it is a share of the compute time, 0 or more (0.05 = 5 %)")
    if not hub_update_rate > 0:
        raise BadInput(f"the update rate is {hub_update_rate!r} bytes/s; it must be above 0")
    for worker, factor in slow.items():
        if not 0 <= worker < len(cluster.workers):
            raise BadInput(f"straggler {worker}: the cluster has workers 0..{len(cluster.workers) - 1}")
        if not 0 < factor < float("inf"):
            raise BadInput(f"straggler {worker} is {factor!r} times slower; give a number above 0")


def _notes(count: int, folded: bool, quantum: int, plan: Plan) -> tuple[str, ...]:
    notes = []
    if folded:
        notes.append(f"{count} equal workers: worker 0 stands for each of them")
    if quantum > plan.chunk_bytes:
        notes.append(f"chunks of {plan.chunk_bytes} bytes simulated {quantum // plan.chunk_bytes} at a time")
    return tuple(notes)


def _shares(plan: Plan, workers: int) -> tuple[float, float]:
    """Of a gradient's bytes, those that travel to be summed and those that come back; a kept value has its place along.

    A hub sums what was kept and returns whole values. Workers give what each of them kept to all, and nothing is summed
    on the way (engine/sparse.py).
    """
    if plan.keep == 1:
        return 1.0, 1.0
    kept = 2 * plan.keep
    return (min(1.0, kept), 1.0) if plan.aggregation in WITH_HUBS else (0.0, kept * workers)
