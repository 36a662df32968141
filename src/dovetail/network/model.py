"""The cluster as data: Link, Host, Cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dovetail.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A transfer of d bytes takes `startup + d / bandwidth`."""

    startup: float  # seconds
    bandwidth: float  # bytes per second, each direction

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise BadInput(f"bandwidth is {self.bandwidth!r} bytes/s; it must be above 0")
        if not (self.startup >= 0 and math.isfinite(self.startup)):
            raise BadInput(f"startup is {self.startup!r} s; it must be finite and 0 or more")

    def time(self, nbytes: float) -> float:
        """Seconds to move `nbytes` over an idle link."""
        return self.startup + nbytes / self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine: one full-duplex link per interface, in a rack."""

    name: str
    link: Link
    rack: str = "rack 0"
    interfaces: int = 1  # a hub may have several; a chunk uses one of them
    cores: int = 1

    def __post_init__(self) -> None:
        if self.interfaces < 1 or self.cores < 1:
            raise BadInput(
                f"host {self.name!r} has {self.interfaces} interfaces and {self.cores} cores; both must be 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers, dedicated hubs (may be none), and the uplink of each rack (absent = not a bottleneck)."""

    workers: tuple[Host, ...]
    hubs: tuple[Host, ...] = ()
    uplinks: dict[str, Link] = field(default_factory=dict)  # rack -> its full-duplex link to the core

    def __post_init__(self) -> None:
        if not self.workers:
            raise BadInput("a cluster has 0 workers; give it 1 or more")
        names = [h.name for h in self.workers + self.hubs]
        doubled = {n for n in names if names.count(n) > 1} if len(set(names)) < len(names) else set()
        if doubled:
            raise BadInput(f"host name {min(doubled)!r} is used twice in the cluster")
        unknown = set(self.uplinks) - {h.rack for h in self.workers + self.hubs}
        if unknown:
            raise BadInput(f"uplink of {min(unknown)!r}: no host is in that rack")

    @classmethod
    def uniform(
        cls, *, workers: int, link: Link, hubs: int = 0, hub_link: Link | None = None, interfaces: int = 1
    ) -> Cluster:
        """`workers` equal hosts, and `hubs` hubs whose interfaces each have `hub_link` (default: the same link)."""
        if workers < 1:
            raise BadInput(f"a cluster with {workers} workers; give it 1 or more")
        hub = hub_link or link
        return cls(
            workers=tuple(Host(name=f"worker {i}", link=link) for i in range(workers)),
            hubs=tuple(Host(name=f"hub {i}", link=hub, interfaces=interfaces) for i in range(hubs)),
        )

    @classmethod
    def racked(
        cls, *, racks: int, per_rack: int, link: Link, oversubscription: float = 1.0, hub_per_rack: bool = False
    ) -> Cluster:
        """`racks` racks of `per_rack` workers; a rack's uplink is its hosts' bandwidth over `oversubscription`."""
        if racks < 1 or per_rack < 1:
            raise BadInput(f"{racks} racks of {per_rack} hosts; both must be 1 or more")
        if not oversubscription > 0:
            raise BadInput(f"oversubscription is {oversubscription!r}; it must be above 0")
        uplink = Link(startup=0.0, bandwidth=per_rack * link.bandwidth / oversubscription)
        names = [f"rack {r}" for r in range(racks)]
        return cls(
            workers=tuple(
                Host(name=f"worker {r * per_rack + i}", link=link, rack=names[r])
                for r in range(racks)
                for i in range(per_rack)
            ),
            hubs=tuple(
                Host(
                    name=f"hub {r}", link=Link(startup=link.startup, bandwidth=link.bandwidth * per_rack), rack=names[r]
                )
                for r in range(racks)
                if hub_per_rack
            ),
            uplinks=dict.fromkeys(names, uplink) if racks > 1 else {},
        )

    @property
    def slowest(self) -> Link:
        """The worker link with the least bandwidth: what a synchronous step feels."""
        return min((h.link for h in self.workers), key=lambda link: link.bandwidth)
