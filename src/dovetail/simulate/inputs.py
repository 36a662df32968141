"""Clusters and disturbances as they are written on a command line."""

from __future__ import annotations

from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Link
from dovetail.units import parse_rate, parse_seconds


def described(
    *, workers: int, rate: str, startup: str, hubs: int = 0, racks: int = 1, oversubscription: float = 1.0
) -> Cluster:
    """Equal workers with `rate` links, in `racks` racks; hubs have the same links."""
    link = Link(startup=parse_seconds(startup), bandwidth=parse_rate(rate) or float("inf"))
    if racks == 1:
        return Cluster.uniform(workers=workers, link=link, hubs=hubs)
    if hubs not in (0, racks):
        raise BadInput(f"{hubs} hubs in {racks} racks; give no hub, or {racks} (one a rack)")
    if racks < 1 or workers % racks:
        raise BadInput(f"{workers} workers do not fill {racks} racks evenly; give a multiple of {racks}")
    return Cluster.racked(
        racks=racks,
        per_rack=workers // racks,
        link=link,
        oversubscription=oversubscription,
        hub_per_rack=hubs > 0,
    )


def straggler(text: str) -> tuple[int, float]:
    """Worker and factor from `2:1.5`."""
    worker, _, factor = text.partition(":")
    try:
        return int(worker), float(factor)
    except ValueError:
        raise BadInput(f"straggler {text!r} is not understood; write RANK:FACTOR, e.g. 2:1.5") from None
