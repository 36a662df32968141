"""The network that a bench runs on: a lab, or loopback where none can be made, and what it really carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dovetail.bench.bounds import RACK_HUBS, Network, hubs_of
from dovetail.bench.crew import hubs_running
from dovetail.errors import BadInput
from dovetail.lab import Hosts, Lab, Loopback, available, measure_rate

STREAM_TIME, STREAMS = 0.5, 3  # seconds of a plain TCP stream; the best of so many is what the link carries
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The network asked for; rates in bytes per second, 0 = unshaped."""

    workers: int
    rate: float
    hub_rate: float | None = None  # None: workers x rate
    racks: int = 1
    uplink: float = 0.0
    shuffle_seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The network in being; `measured` is what one plain TCP stream gets, `limit` what systems must keep themselves."""

    lab: Hosts
    hubs: tuple[str, ...]  # addresses
    measured: float
    share: float  # of a shaped rate that data gets; headers have the rest
    limit: float
    notes: tuple[str, ...]
    site: Site

    @property
    def shaped(self) -> bool:
        """Whether links keep to a rate, whatever is sent."""
        return bool(self.site.rate) and not self.limit

    def network(self, workers: int) -> Network:
        """Its first `workers` hosts and its hubs, at the rates that data gets."""
        hubs = self.lab.layout.hubs
        return Network(
            racks=tuple(node.rack for node in self.lab.layout.hosts[:workers]),
            rate=self.measured,
            hub_rate=hubs[0].rate * self.share if hubs else 0.0,
            hub_racks=tuple(hub.rack for hub in hubs),
            uplink=self.site.uplink * self.share,
        )

    def hubs_for(self, pattern: str, workers: int) -> tuple[str, ...]:
        """Addresses of the hubs for a job of the first `workers` hosts: the first, or one in each of its racks."""
        racks = self.network(workers).racks
        if pattern == RACK_HUBS:
            nodes = zip(self.lab.layout.hubs, self.hubs, strict=True)
            return tuple(address for node, address in nodes if node.rack in racks)
        return self.hubs[: hubs_of(pattern, racks)]


@contextmanager
def built(site: Site, *, hubs: int, tell: Tell) -> Iterator[Stage]:
    """The site with its hubs running, and its rate measured."""
    allowed, reason = available()
    notes: tuple[str, ...] = ()
    with ExitStack() as stack:
        if allowed:
            lab: Hosts = stack.enter_context(
                Lab(
                    site.workers,
                    site.rate,
                    hubs=hubs,
                    hub_rate=site.hub_rate,
                    racks=site.racks,
                    uplink=site.uplink,
                    shuffle_seed=site.shuffle_seed,
                )
            )
            tell("measuring the links")
            measured, share, limit = *_measure(lab, site), 0.0
        else:
            if site.racks > 1:
                raise BadInput(f"racks need a lab, and there is none: {reason}")
            lab = stack.enter_context(Loopback(site.workers, site.rate, hubs=hubs, hub_rate=site.hub_rate))
            tell("measuring loopback")
            stream = _stream(lab, 0)
            measured, share, limit = (site.rate or stream), 1.0, site.rate
            keeping = ", where each system keeps to the rate by itself" if site.rate else ""
            notes = (f"on loopback{keeping}; no lab can be made: {reason}",)
        addresses: Sequence[str] = ()
        if hubs:
            tell("starting the hub")
            arguments = ["--rate", f"{lab.layout.hubs[0].rate:.0f}b"] if limit else []
            addresses = stack.enter_context(hubs_running(lab, *arguments))
        yield Stage(lab=lab, hubs=tuple(addresses), measured=measured, share=share, limit=limit, notes=notes, site=site)


def _measure(lab: Hosts, site: Site) -> tuple[float, float]:
    """A worker link's rate for data, and what share of a shaped rate that is, from one stream inside a rack."""
    racks = [node.rack for node in lab.layout.hosts]
    if len(racks) == 1:
        return site.rate, 1.0  # nobody to send to
    other = next((i for i in range(1, len(racks)) if racks[i] == racks[0]), len(racks) - 1)
    stream = _stream(lab, other)
    limits = [site.rate] if racks[other] == racks[0] else [site.rate, site.uplink]
    capacity = min((limit for limit in limits if limit), default=0.0)
    share = stream / capacity if capacity else 1.0
    return (site.rate * share if site.rate else stream), share


def _stream(lab: Hosts, other: int) -> float:
    return max(measure_rate(lab, 0, other, seconds=STREAM_TIME) for _ in range(STREAMS))
