"""Several policies on one model and cluster: the table, and how it changes with workers and bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dovetail.network.model import Cluster, Host, Link
from dovetail.plan.auto import choose
from dovetail.plan.policies import AUTO, plan_for_training
from dovetail.plan.schedule import Plan
from dovetail.simulate.run import simulate
from dovetail.timeline import Timeline
from dovetail.trace.graph import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One policy's figures; times are seconds."""

    policy: str
    aggregation: str
    update: str
    iteration_time: float
    communication_time: float
    compute_time: float
    rho: float
    alpha: float
    utilization: float
    straggler: float
    speedup: float  # over the first policy of the comparison


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `dovetail simulate` found."""

    model: str
    workers: int
    hubs: int
    bandwidth: float  # bytes per second of the slowest worker
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What disturbs the workers."""

    jitter: float = 0.0
    seed: int = 0
    stragglers: Mapping[int, float] | None = None


def plan_for(profile: Profile, cluster: Cluster, policy: str, aggregation: str | None = None) -> Plan:
    """The plan that training would run; `auto` is the best of its candidates and says which in its name."""
    if policy != AUTO:
        return plan_for_training(profile, cluster, policy, aggregation=aggregation)
    best, _ = choose(profile, cluster, partial(simulate, quick=True))
    return replace(best, policy=f"auto: {best.policy}")


def run_all(
    profile: Profile, cluster: Cluster, plans: Iterable[Plan], conditions: Conditions | None = None
) -> dict[Plan, Timeline]:
    """The timeline of each plan, in order."""
    given = conditions or Conditions()
    return {
        plan: simulate(
            profile, plan, cluster, jitter=given.jitter, seed=given.seed, stragglers=given.stragglers, iterations=3
        )
        for plan in plans
    }


def comparison(profile: Profile, cluster: Cluster, timelines: Mapping[Plan, Timeline]) -> Comparison:
    """The figures of the timelines, side by side."""
    first = next(iter(timelines.values())).iteration_time
    return Comparison(
        model=profile.name,
        workers=len(cluster.workers),
        hubs=len(cluster.hubs),
        bandwidth=cluster.slowest.bandwidth,
        predictions=tuple(
            Prediction(
                policy=plan.policy,
                aggregation=plan.aggregation,
                update=plan.update,
                iteration_time=t.iteration_time,
                communication_time=t.communication_time,
                compute_time=t.compute_time,
                rho=t.rho if t.compute_time else 0.0,
                alpha=t.alpha,
                utilization=t.utilization,
                straggler=t.straggler,
                speedup=first / t.iteration_time if t.iteration_time else 1.0,
            )
            for plan, t in timelines.items()
        ),
    )


def throughput(profile: Profile, cluster: Cluster, policy: str, aggregation: str | None = None) -> float:
    """How many times the samples per second of one worker that needs no network."""
    plan = plan_for(profile, cluster, policy, aggregation)
    took = simulate(profile, plan, cluster, iterations=1).iteration_time
    return len(cluster.workers) * profile.compute_time / took if took else float(len(cluster.workers))


def resized(cluster: Cluster, workers: int) -> Cluster:
    """A cluster of `workers` machines like the first worker, in one rack, with the same hubs."""
    model = cluster.workers[0]
    hosts = tuple(replace(model, name=f"worker {i}", rack="rack 0") for i in range(workers))
    return Cluster(workers=hosts, hubs=tuple(replace(hub, rack="rack 0") for hub in cluster.hubs))


def rescaled(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster with every bandwidth multiplied."""

    def faster(link: Link) -> Link:
        return Link(startup=link.startup, bandwidth=link.bandwidth * factor)

    def all_of(hosts: Sequence[Host]) -> tuple[Host, ...]:
        return tuple(replace(host, link=faster(host.link)) for host in hosts)

    uplinks = {rack: faster(link) for rack, link in cluster.uplinks.items()}
    return Cluster(workers=all_of(cluster.workers), hubs=all_of(cluster.hubs), uplinks=uplinks)
