"""What a deployment needs and costs: bandwidth of hosts, price of a rack, and when hierarchy pays."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.errors import BadInput

# Where the servers are: with the workers or not (C, NC), one or as many as workers (C, S).
DEPLOYMENTS = ("CC", "CS", "NCC", "NCS")


def host_multiple(deployment: str, *, workers: int) -> float:
    """Times the model that passes the host of a server, in and out, in one iteration."""
    if workers < 1:
        raise BadInput(f"{workers} workers; give 1 or more")
    if deployment == "CC":
        return 2.0 * (workers - 1)
    if deployment == "CS":
        return 4.0 * (workers - 1) / workers
    if deployment == "NCC":
        return 2.0 * workers
    if deployment == "NCS":
        return 2.0
    raise BadInput(f"deployment {deployment!r} is unknown; it is one of {', '.join(DEPLOYMENTS)}")


def host_bandwidth(*, model_bytes: float, iteration: float, workers: int, deployment: str) -> float:
    """Bytes per second, in and out together, that hide all communication behind `iteration` seconds of compute."""
    if not (iteration > 0 and model_bytes >= 0):
        raise BadInput(f"a model of {model_bytes} bytes and {iteration} s an iteration; give 0 or more, and above 0")
    return host_multiple(deployment, workers=workers) * model_bytes / iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Both sides of the inequality, in seconds per byte of the model."""

    flat: float  # the way across the core that hierarchy saves
    hierarchical: float  # the longer of local aggregation's two ends, and the exchange between racks

    @property
    def pays(self) -> bool:
        return self.flat > self.hierarchical


def hierarchy(
    *, per_rack: int, racks: int, core: float, hub: float, worker: float, exchange: float | None = None
) -> Verdict:
    """N(R-1)/(R B_core) > max(N/B_hub, 1/B_worker) + C, with bandwidths in bytes per second.

    C, `exchange`, is seconds per byte between racks: measured, or by default (R-1)/(R min(B_hub, B_core)),
    which a ring of racks and sharded servers both come to.
    """
    if per_rack < 1 or racks < 1:
        raise BadInput(f"{racks} racks of {per_rack} workers; both must be 1 or more")
    for name, bandwidth in (("core", core), ("hub", hub), ("worker", worker)):
        if not bandwidth > 0:
            raise BadInput(f"the {name} bandwidth is {bandwidth} bytes/s; it must be above 0")
    between = (racks - 1) / (racks * min(hub, core)) if exchange is None else exchange
    return Verdict(
        flat=per_rack * (racks - 1) / (racks * core),
        hierarchical=max(per_rack / hub, 1 / worker) + between,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Prices of one port of a network, in dollars."""

    card: float
    switch_port: float
    cable: float

    def per_host(self, oversubscription: float) -> float:
        """A = (N + S + C) + F(4S + 2C), where F = 1 / oversubscription is the share of upper layers a host pays."""
        if not oversubscription >= 1:
            raise BadInput(f"oversubscription is {oversubscription}:1; give 1 or more")
        upper = 4 * self.switch_port + 2 * self.cable
        return self.card + self.switch_port + self.cable + upper / oversubscription


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Dollars; the defaults are the advertised prices of the thesis (25 and 100 Gbit/s Ethernet, 2018)."""

    worker: float = 4117.0  # without GPUs
    gpu: float = 699.0
    gpus: int = 4
    hub: float = 8407.0
    hub_card: float = 162.5  # per port
    hub_ports: int = 20
    # A 32-port switch of 21077 dollars; four 25 Gbit/s hosts share a port by a breakout cable.
    fast: Network = Network(card=795.0, switch_port=21077 / 32, cable=94.0)
    slow: Network = Network(card=260.0, switch_port=21077 / 32 / 4, cable=31.25)

    def sharded_worker(self) -> float:
        """A worker of the baseline: the fast network without oversubscription, servers on the workers."""
        return self.worker + self.fast.card + self.gpus * self.gpu + self.fast.per_host(1)

    def hub_worker(self, *, oversubscription: float, workers_per_hub: int) -> float:
        """A worker on the slow network, with its share of a hub."""
        if workers_per_hub < 1:
            raise BadInput(f"{workers_per_hub} workers a hub; give 1 or more")
        port = Network(card=self.hub_card, switch_port=self.slow.switch_port, cable=self.slow.cable)
        hub = self.hub + self.hub_ports * (self.hub_card + port.per_host(oversubscription))
        alone = self.worker + self.slow.card + self.gpus * self.gpu + self.slow.per_host(oversubscription)
        return alone + hub / workers_per_hub


WORKERS_PER_HUB = {1: 44, 2: 65, 3: 76}  # that a 32-port switch holds beside a hub, by oversubscription
EFFICIENCY = 0.98  # of a hub's throughput that is left when racks exchange sums


def per_thousand(throughput: float, dollars: float) -> float:
    """Samples per second for each 1000 dollars of a worker."""
    return 1000 * throughput / dollars
