"""What physics allows: the bytes each link must carry for one sum over all workers, and the time that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.errors import BadInput
from dovetail.plan.patterns import PATTERNS, routes
from dovetail.plan.steps import OFFER, SEND

RING, SHUFFLE, HUB, TWO_LEVEL, RACK_HUBS = "ring", "shuffle", "hub", "two-level", "rack-hubs"
WITH_RACKS = (TWO_LEVEL, RACK_HUBS)  # patterns that are told who stands where
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Rates in bytes per second, each direction; 0 = no limit. `racks[i]` is worker i's rack, `hub_racks` the hubs'."""

    racks: tuple[int, ...]
    rate: float
    hub_rate: float = 0.0
    hub_racks: tuple[int, ...] = ()
    uplink: float = 0.0


def hubs_of(pattern: str, racks: Sequence[int]) -> int:
    """How many dedicated hubs the pattern needs for workers in these racks."""
    return {HUB: 1, RACK_HUBS: len(set(racks))}.get(pattern, 0)


def groups_of(pattern: str, racks: Sequence[int]) -> Groups | None:
    """The workers of each rack, for patterns that know racks where there are several; None = even groups, or none."""
    if pattern not in WITH_RACKS or len(set(racks)) < 2:
        return None
    return tuple(tuple(i for i, mine in enumerate(racks) if mine == rack) for rack in sorted(set(racks)))


def busiest(pattern: str, nbytes: int, network: Network) -> dict[str, float]:
    """Bytes in the busier direction of the busiest `worker`, `hub` and `uplink` link."""
    if pattern not in PATTERNS:
        raise BadInput(f"pattern {pattern!r} has no bound; it is one of {', '.join(PATTERNS)}")
    workers, hubs = len(network.racks), hubs_of(pattern, network.racks)
    racks = network.racks + network.hub_racks[:hubs]
    ways = routes(pattern, workers=workers, hubs=hubs, groups=groups_of(pattern, network.racks))
    sent: Counter[tuple[str, int, str]] = Counter()  # link's kind, its number, direction -> chunks
    for route in ways:
        for node, program in route.items():
            for peer in (p for step in program if step.op in (SEND, OFFER) for p in step.peers):
                sent[_kind(node, workers), node, "out"] += 1
                sent[_kind(peer, workers), peer, "in"] += 1
                if racks[node] != racks[peer]:
                    sent["uplink", racks[node], "out"] += 1
                    sent["uplink", racks[peer], "in"] += 1
    share = nbytes / len(ways)  # chunks are spread evenly over the routes
    return {
        kind: share * max((count for (k, *_), count in sent.items() if k == kind), default=0)
        for kind in ("worker", "hub", "uplink")
    }


def transfer_time(pattern: str, nbytes: int, network: Network) -> float:
    """Seconds that the slowest of the busiest links needs for its bytes."""
    rates = {"worker": network.rate, "hub": network.hub_rate, "uplink": network.uplink}
    loads = busiest(pattern, nbytes, network)
    return max((load / rates[link] for link, load in loads.items() if rates[link]), default=0.0)


def _kind(node: int, workers: int) -> str:
    return "worker" if node < workers else "hub"
