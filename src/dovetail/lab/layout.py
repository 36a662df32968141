"""Which hosts a lab has: names, addresses, racks and rates, decided before anything is built."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dovetail.errors import BadInput
from dovetail.units import format_rate

MOST_HOSTS = 200  # of each kind; keeps addresses in one byte
PREFIX_LENGTH = 16
NETWORK = "10.71.0.0/16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One host of the lab; `rate` is bytes per second each way, 0 = unshaped."""

    name: str  # "host0", "hub0"
    address: str
    rack: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A cluster in a box: workers, hubs, racks and the rate of each rack's uplink (0 = unshaped)."""

    hosts: tuple[Node, ...]
    hubs: tuple[Node, ...]
    racks: int
    uplink: float

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.hosts + self.hubs


def layout(
    *,
    hosts: int,
    rate: float,
    hubs: int = 0,
    hub_rate: float | None = None,
    racks: int = 1,
    uplink: float = 0.0,
    shuffle_seed: int | None = None,
    address: str | None = None,
) -> Layout:
    """Hosts in equal contiguous racks, or over the racks in an order drawn from `shuffle_seed`.

    `address` is everyone's, where all hosts are one machine.
    """
    if not 1 <= hosts <= MOST_HOSTS or not 0 <= hubs <= MOST_HOSTS:
        raise BadInput(f"a lab of {hosts} hosts and {hubs} hubs; give 1 to {MOST_HOSTS} hosts and up to as many hubs")
    if not 1 <= racks <= hosts:
        raise BadInput(f"{racks} racks for {hosts} hosts; give 1 to {hosts} racks")
    if uplink and racks == 1:
        raise BadInput(f"an uplink of {format_rate(uplink)} with 1 rack; give --racks 2 or more")
    for what, value in (("rate", rate), ("hub rate", hub_rate or 0.0), ("uplink", uplink)):
        if value < 0:
            raise BadInput(f"the {what} is {value!r} bytes/s; give 0 (unshaped) or more")
    rack_of = [i * racks // hosts for i in range(hosts)]
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(rack_of)
    hub_speed = rate * hosts if hub_rate is None else hub_rate
    workers = [("host", i, rack_of[i], rate) for i in range(hosts)]
    servers = [("hub", i, i % racks, hub_speed) for i in range(hubs)]

    def node(kind: str, number: int, rack: int, speed: float) -> Node:
        own = f"10.71.{int(kind == 'hub')}.{number + 1}"
        return Node(name=f"{kind}{number}", address=address or own, rack=rack, rate=speed)

    return Layout(
        hosts=tuple(node(*worker) for worker in workers),
        hubs=tuple(node(*server) for server in servers),
        racks=racks,
        uplink=uplink,
    )
