"""What physics allows: the bytes each link must carry for one sum over all workers, and the time that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.errors import BadInput

RING, SHUFFLE, HUB = "ring", "shuffle", "hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Rates in bytes per second, each direction; 0 = no limit. `racks[i]` is worker i's rack."""

    racks: tuple[int, ...]
    rate: float
    hub_rate: float = 0.0
    hub_rack: int = 0
    uplink: float = 0.0


def busiest(pattern: str, nbytes: int, network: Network) -> dict[str, float]:
    """Bytes in the busier direction of the busiest `worker`, `hub` and `uplink` link."""
    workers = len(network.racks)
    if workers == 1 and pattern != HUB:
        return {"worker": 0.0, "uplink": 0.0}
    if pattern == RING:
        each = 2 * (workers - 1) / workers * nbytes
        return {"worker": each, "uplink": each * _most_ring_exits(network.racks)}
    if pattern == SHUFFLE:
        pairs = max((network.racks.count(r) * (workers - network.racks.count(r)) for r in network.racks), default=0)
        return {"worker": 2 * (workers - 1) / workers * nbytes, "uplink": pairs * 2 * nbytes / workers}
    if pattern == HUB:
        outside = sum(r != network.hub_rack for r in network.racks)
        return {"worker": float(nbytes), "hub": float(workers * nbytes), "uplink": float(outside * nbytes)}
    raise BadInput(f"pattern {pattern!r} has no bound; it is one of {RING}, {SHUFFLE}, {HUB}")


def transfer_time(pattern: str, nbytes: int, network: Network) -> float:
    """Seconds that the slowest of the busiest links needs for its bytes."""
    rates = {"worker": network.rate, "hub": network.hub_rate, "uplink": network.uplink}
    loads = busiest(pattern, nbytes, network)
    return max((load / rates[link] for link, load in loads.items() if rates[link]), default=0.0)


def _most_ring_exits(racks: Sequence[int]) -> int:
    """How often the ring 0, 1, ..., 0 leaves the rack that it leaves most often."""
    exits = [a for a, b in zip(racks, [*racks[1:], racks[0]], strict=True) if a != b]
    return max((exits.count(rack) for rack in racks), default=0)
