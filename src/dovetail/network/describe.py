"""A cluster in a few numbers, as a person describes it."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Host, Link


def worker_links(workers: int, rates: Sequence[float], startup: float) -> tuple[Link, ...]:
    """One link a worker from one rate for all, or from one each (bytes per second)."""
    if workers < 1:
        raise BadInput(f"a cluster with {workers} workers; give it 1 or more")
    if len(rates) not in (1, workers):
        raise BadInput(f"{len(rates)} rates for {workers} workers; give one rate, or one for each worker")
    every = list(rates) * workers if len(rates) == 1 else rates
    return tuple(Link(startup=startup, bandwidth=rate) for rate in every)


def describe(
    links: Sequence[Link],
    *,
    hubs: int = 0,
    hub_rate: float | None = None,
    interfaces: int = 1,
    racks: int = 1,
    oversubscription: float = 1.0,
) -> Cluster:
    """Workers with these links in equal racks; a hub carries all workers' bandwidth unless `hub_rate` says otherwise.

    `hub_rate` is of all its interfaces together. A rack's uplink has its workers' bandwidth over `oversubscription`.
    """
    if hubs < 0 or interfaces < 1:
        raise BadInput(f"{hubs} hubs with {interfaces} interfaces; give 0 hubs or more, with 1 interface or more")
    if racks < 1 or len(links) % racks:
        raise BadInput(f"{len(links)} workers do not fill {racks} racks evenly")
    if not oversubscription > 0:
        raise BadInput(f"oversubscription is {oversubscription!r}; it must be above 0")
    if oversubscription != 1 and racks == 1:
        raise BadInput(f"oversubscription {oversubscription:g} concerns the uplinks of racks; give 2 racks or more")
    total = sum(link.bandwidth for link in links) if hub_rate is None else hub_rate
    hub_link = Link(startup=links[0].startup, bandwidth=total / interfaces)
    per_rack = len(links) // racks
    uplinks = {
        f"rack {r}": Link(
            startup=0.0,
            bandwidth=sum(link.bandwidth for link in links[r * per_rack : (r + 1) * per_rack]) / oversubscription,
        )
        for r in range(racks)
        if racks > 1
    }
    return Cluster(
        workers=tuple(
            Host(name=f"worker {i}", link=link, rack=f"rack {i // per_rack}") for i, link in enumerate(links)
        ),
        hubs=tuple(
            Host(name=f"hub {i}", link=hub_link, rack=f"rack {i % racks}", interfaces=interfaces) for i in range(hubs)
        ),
        uplinks=uplinks,
    )
