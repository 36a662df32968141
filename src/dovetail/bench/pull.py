"""`bench pull`: inference agents that fetch a model's parameters from a hub while their forward pass already runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from dovetail.bench.bounds import Network
from dovetail.bench.crew import Crew
from dovetail.bench.models import profile_of, published
from dovetail.bench.orders import PullOrder, PullPost, PullReply, Workload
from dovetail.bench.predict import STARTUP, cluster_of
from dovetail.bench.result import OrderResult, PullResult, Times
from dovetail.bench.stage import Site, Tell, built
from dovetail.errors import BadInput
from dovetail.plan.policies import make_plan

RANDOM = "random"  # another order in every round, as a system without a plan has
ORDERS = ("tic", "tac", RANDOM)


def bench_pull(
    site: Site, workload: Workload, *, orders: Sequence[str], rounds: int, tell: Tell = lambda _: None
) -> PullResult:
    """All workers of the site pull at once, in each order, in turns; a further host holds the training job."""
    _check(workload, orders, rounds)
    assert workload.compute is not None
    # The job's host trains nothing while clients pull: its link carries nothing, and the hub's rate is the clients'.
    hub_rate = site.rate * site.workers if site.hub_rate is None else site.hub_rate
    wider = replace(site, workers=site.workers + 1, hub_rate=hub_rate)
    with built(wider, hubs=1, tell=tell) as stage:
        post = PullPost(workload=workload, hub=stage.hubs[0], rate=stage.limit)
        seen: dict[str, list[float]] = {order: [] for order in orders}
        with Crew(stage.lab, "pull", "dovetail.bench.pull_worker", post, workers=wider.workers, number=0) as crew:
            crew.hear(PullReply)
            for number in range(rounds):
                for order in orders:
                    tell(f"round {number + 1} of {rounds}, {order}")
                    ranks = priorities(order, workload, seed=number)
                    asked = PullOrder(namespace=f"pull-{order}-{number}", priorities=ranks)
                    seen[order] += [r.seconds for r in crew.ask(asked, PullReply) if r.seconds is not None]
        nbytes = sum(4 * layer.elements(workload.scale) for layer in published(workload.model))
        network = stage.network(site.workers)
        return PullResult(
            bench="pull",
            model=workload.model,
            scale=workload.scale,
            clients=site.workers,
            rate=site.rate,
            measured_rate=stage.measured,
            bytes=nbytes,
            compute_s=workload.compute,
            bound_s=max(workload.compute, pull_time(nbytes, network)),
            orders=tuple(OrderResult(order=order, pass_s=Times.of(times)) for order, times in seen.items()),
            notes=stage.notes,
        )


def priorities(order: str, workload: Workload, *, seed: int) -> dict[str, int]:
    """Parameter -> rank among the pulls, 0 first; the random order is drawn from `seed`."""
    profile = profile_of(workload.model, compute=workload.compute or 0.0, scale=workload.scale)
    if order == RANDOM:
        names = [p.name for p in profile.params]
        random.Random(seed).shuffle(names)
    else:
        network = Network(racks=(0,), rate=0.0, hub_racks=(0,))
        names = make_plan(profile, cluster_of(network, "hub", startup=STARTUP), order, aggregation="hub").order
    return {name: rank for rank, name in enumerate(names)}


def pull_time(nbytes: int, network: Network) -> float:
    """Seconds that the busier of a client's link and the hub's needs for what passes it."""
    loads = ((nbytes, network.rate), (nbytes * len(network.racks), network.hub_rate))
    return max((load / rate for load, rate in loads if rate), default=0.0)


def _check(workload: Workload, orders: Sequence[str], rounds: int) -> None:
    for order in orders:
        if order not in ORDERS:
            raise BadInput(f"order {order!r} is not known; choose among {', '.join(ORDERS)}")
    if len(set(orders)) < len(orders) or not orders or rounds < 1:
        raise BadInput(f"{rounds} rounds of the orders {','.join(orders)!r}; give 1 round or more, and each order once")
    if workload.compute is None or not workload.compute > 0:
        raise BadInput(f"a forward pass of {workload.compute} s; give more than 0")
    if not workload.scale > 0:
        raise BadInput(f"scale is {workload.scale}; give a number above 0")
