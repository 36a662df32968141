"""What the simulator says about the rows of `bench train`: the same workload, plan and network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dovetail.bench.bounds import Network, hubs_of, transfer_time
from dovetail.bench.crew import Crew
from dovetail.bench.models import profile_of
from dovetail.bench.orders import LinkOrder, LinkPost, LinkReply
from dovetail.bench.result import SystemResult, TrainResult
from dovetail.bench.stage import Stage, Tell
from dovetail.bench.systems import System
from dovetail.lab.shape import QUEUE_TIME
from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.buckets import MIB
from dovetail.plan.linkcost import WITH_HUBS
from dovetail.plan.policies import AUTO, plan_for_training
from dovetail.plan.schedule import Plan
from dovetail.plan.usual import bucketed
from dovetail.simulate.network import Backlog
from dovetail.simulate.run import simulate
from dovetail.trace.graph import Profile

STARTUP = 100e-6  # seconds, where there is no pair of hosts to measure it between
# What has left the priority queues before a link is free: what the engine lets the kernel hold for a peer (docs/
# architecture.md), and the queue of a link, which is 4 ms of its rate in a lab (lab/shape.py) and similar in switches.
BACKLOG = Backlog(per_peer=64 * 1024, queue=QUEUE_TIME)
ROUNDS = 2  # after which an iteration's time and its share of busy links agree well enough
UNLIMITED = 1e12  # bytes per second: a network of one host has no rate


def fit_startup(stage: Stage, *, number: int, tell: Tell) -> tuple[float, str]:
    """Seconds that a transfer between two hosts of the stage takes beside its bytes, and what was done to know."""
    if stage.site.workers < 2:
        return STARTUP, f"predictions take a startup of {STARTUP * 1e6:.0f} us: there is no pair of hosts to measure"
    tell("fitting the startup of a transfer")
    with Crew(stage.lab, "link", "dovetail.bench.link_worker", LinkPost(), workers=2, number=number) as crew:
        crew.hear(LinkReply)
        found = crew.ask(LinkOrder(), LinkReply)[0]
    assert found.link is not None
    startup, off = found.link.startup, found.error
    return startup, f"predictions take a startup of {startup * 1e6:.0f} us, fitted in this run ({off:.0%} error)"


def with_predictions(result: TrainResult, systems: Sequence[System]) -> TrainResult:
    """The result with the simulator's seconds in every row, from what the same run measured of network and compute."""
    by_name = {system.name: system for system in systems}
    rows = (replace(row, predicted_s=_of_row(result, row, by_name[row.name])) for row in result.systems)
    return replace(result, systems=tuple(rows))


def _of_row(result: TrainResult, row: SystemResult, system: System) -> float:
    assert result.network is not None
    assert result.startup_s is not None
    network = replace(result.network, racks=result.network.racks[: row.workers])
    cluster = cluster_of(network, system.pattern, startup=result.startup_s)

    def seconds(compute: float) -> float:
        profile = profile_of(result.model, compute=compute, scale=result.scale)
        return predicted(system, row.variant, profile, cluster)

    load = transfer_time(system.pattern, result.bytes, network)
    return settled(seconds, floor=row.floor_s, paced=row.paced_s, load=load)


def settled(seconds: Callable[[float], float], *, floor: float, paced: float, load: float) -> float:
    """The iteration time that agrees with itself: its computation is slowed for the share of it that links are busy.

    `seconds(compute)` is the iteration time for a time of computing, which is `floor` beside idle links and `paced`
    beside links that are always busy; they are for `load` seconds of an iteration.
    """
    found = seconds(paced)
    for _ in range(ROUNDS):
        found = seconds(floor + min(1.0, load / found) * (paced - floor))
    return found


def cluster_of(network: Network, pattern: str, *, startup: float) -> Cluster:
    """The network as the simulator knows it, with the hubs that the pattern uses."""
    link = Link(startup=startup, bandwidth=network.rate or UNLIMITED)
    wide = Link(startup=startup, bandwidth=network.hub_rate or link.bandwidth)
    hubs = network.hub_racks[: hubs_of(pattern, network.racks)]
    racks = sorted({*network.racks, *hubs})
    uplink = Link(startup=0.0, bandwidth=network.uplink) if network.uplink and len(racks) > 1 else None
    return Cluster(
        workers=tuple(Host(name=f"worker {i}", link=link, rack=f"rack {r}") for i, r in enumerate(network.racks)),
        hubs=tuple(Host(name=f"hub {i}", link=wide, rack=f"rack {r}") for i, r in enumerate(hubs)),
        uplinks={f"rack {rack}": uplink for rack in racks} if uplink else {},
    )


def predicted(system: System, variant: str, profile: Profile, cluster: Cluster) -> float:
    """The simulated seconds of an iteration."""
    if variant == AUTO:
        # Not at the top: it loads torch, which the conductor of a bench otherwise does without.
        from dovetail.training.choosing import shortlist

        place = system.update or ("hub" if system.pattern in WITH_HUBS else "worker")
        found = shortlist(profile, cluster, aggregation=None if system.free else system.pattern, place=place)
        return min(_seconds(profile, candidate.plan, cluster) for candidate in found)
    if not system.each:
        return _seconds(profile, bucketed(profile, cluster, nbytes=int(float(variant) * MIB)), cluster)
    plan = plan_for_training(profile, cluster, variant, aggregation=system.asked, update=system.update)
    return _seconds(profile, plan, cluster)


def _seconds(profile: Profile, plan: Plan, cluster: Cluster) -> float:
    return simulate(profile, plan, cluster, backlog=BACKLOG, quick=True).iteration_time
