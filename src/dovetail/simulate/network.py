"""What the event loop knows of the network: ports where chunks queue, and the resources a message passes.

Every resource is serial. A message holds its sender's port for the startup (once per transfer, sender and round)
and its bytes, and passes the uplinks and the receiver's port as soon as they are free (cut-through): each is taken
for its own bytes / bandwidth, and the message has landed when the slowest is through. A connection carries one
chunk at a time, so what the receiver cannot take yet waits at the sender, where it can still be overtaken.

Real senders give bytes away before the link is free: to the kernel, and to queues in the network. With a `Backlog`,
a connection takes chunks until so many bytes are under way, whether its port is free or not; what has been taken
cannot be overtaken, and a startup delays its own transfer only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dovetail.network.model import Cluster, Host
from dovetail.plan.partition import spread
from dovetail.plan.steps import GATE, OFFER, SEND
from dovetail.simulate.paths import Moves, compile_route, routes_of
from dovetail.simulate.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a sender has given away before its link is free: so much for each peer, and what queues in the link."""

    per_peer: int = 0  # bytes
    queue: float = 0.0  # seconds of the sender's link, shared by its peers

    def room(self, bandwidth: float, peers: int) -> float:
        """Bytes that one of the connections of a port with this bandwidth may have under way."""
        return self.per_peer + self.queue * bandwidth / max(1, peers)


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """A message's way: `legs` are (resource, seconds per byte), `port` (the first of them) is where it queues."""

    port: int
    connection: tuple[int, ...]
    legs: tuple[tuple[int, float], ...]
    latency: float = 0.0  # seconds that hold up nothing else
    lone: float = 0.0  # seconds per byte that a single chunk needs at least
    room: float = 0.0  # bytes under way below which the connection takes a chunk; 0 = only when it has none


class Network(Protocol):
    """The network and the routes over it."""

    resources: int
    names: list[str]  # of nodes
    workers: range  # nodes that compute
    cores: list[int]  # per node
    update_share: list[float]  # per node, the part of a chunk's update that it does
    gated: bool  # some route has a GATE

    def moves(self, chunk: int) -> Moves: ...

    def path(self, chunk: int, source: int, target: int, phase: int) -> Path: ...

    def startup(self, source: int, phase: int, nbytes: int) -> tuple[float, float]:
        """Seconds a transfer's first message holds the sender's port, and seconds that only delay its chunks."""

    def port(self, worker: int) -> tuple[int, float]:
        """Where what the worker sends queues, and its startup."""

    def at_root(self, pull: int, node: int) -> int:
        """How many of the pull's chunks are finished at the node."""

    def worker_of(self, node: int) -> int: ...


class FullNetwork:
    """Every node, port and uplink of the cluster; chunks are spread over the pattern's routes."""

    def __init__(self, work: Work, cluster: Cluster, aggregation: str, backlog: Backlog = Backlog()) -> None:
        self._hosts: tuple[Host, ...] = cluster.workers + cluster.hubs
        self.names = [f"worker {i}" for i in range(len(cluster.workers))]
        self.names += [f"hub {i}" for i in range(len(cluster.hubs))]
        self.workers = range(len(cluster.workers))
        self.cores = [host.cores for host in self._hosts]
        self.update_share = [1.0] * len(self._hosts)
        routes = routes_of(aggregation, cluster)
        self.gated = any(step.op == GATE for route in routes for program in route.values() for step in program)
        self._moves = [compile_route(route) for route in routes]
        order = sorted(range(len(work.chunks)), key=lambda c: (work.chunks[c].priority, work.chunks[c].param, c))
        self._route = [0] * len(order)
        for chunk, route in zip(order, spread([work.chunks[c].nbytes for c in order], bins=len(routes)), strict=True):
            self._route[chunk] = route
        self._face = [0] * len(order)
        turn = [0] * len(routes)
        for chunk in order:
            self._face[chunk] = turn[self._route[chunk]]
            turn[self._route[chunk]] += 1
        self._first_port: list[int] = []
        self.resources = 0
        for host in self._hosts:
            self._first_port.append(self.resources)
            self.resources += 2 * host.interfaces
        self._uplinks: dict[str, int] = {}
        for rack in cluster.uplinks:
            self._uplinks[rack] = self.resources
            self.resources += 2
        self._cluster, self._backlog = cluster, backlog
        self._peers = [
            len({peer for r in self._moves for m in r.get(node, ()) if m.op in (SEND, OFFER) for peer in m.peers})
            for node in range(len(self._hosts))
        ]
        self._paths: dict[tuple[int, ...], Path] = {}
        self._at_root = self._count_roots(work)

    def moves(self, chunk: int) -> Moves:
        return self._moves[self._route[chunk]]

    def path(self, chunk: int, source: int, target: int, phase: int) -> Path:
        out = self._face[chunk] % self._hosts[source].interfaces
        into = self._face[chunk] % self._hosts[target].interfaces
        key = (source, out, target, into)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = self._make(*key)
        return found

    def startup(self, source: int, phase: int, nbytes: int) -> tuple[float, float]:
        return self._hosts[source].link.startup, 0.0

    def port(self, worker: int) -> tuple[int, float]:
        return self._first_port[worker], self._hosts[worker].link.startup

    def at_root(self, pull: int, node: int) -> int:
        return self._at_root[pull, node]

    def worker_of(self, node: int) -> int:
        return node

    def _make(self, source: int, out: int, target: int, into: int) -> Path:
        sender, receiver = self._hosts[source], self._hosts[target]
        port = self._first_port[source] + 2 * out
        legs = [(port, 1 / sender.link.bandwidth)]
        latency = 0.0
        if sender.rack != receiver.rack:
            for rack, way in ((sender.rack, 0), (receiver.rack, 1)):
                if rack in self._uplinks:
                    legs.append((self._uplinks[rack] + way, 1 / self._cluster.uplinks[rack].bandwidth))
                    latency += self._cluster.uplinks[rack].startup
        legs.append((self._first_port[target] + 2 * into + 1, 1 / receiver.link.bandwidth))
        room = self._backlog.room(sender.link.bandwidth, self._peers[source])
        return Path(port, (port, target, into), tuple(legs), latency, room=room)

    def _count_roots(self, work: Work) -> dict[tuple[int, int], int]:
        roots = [next(n for n, moves in route.items() if any(m.op == "finish" for m in moves)) for route in self._moves]
        counts: dict[tuple[int, int], int] = {}
        for number, chunk in enumerate(work.chunks):
            if chunk.pull >= 0:
                key = (chunk.pull, roots[self._route[number]])
                counts[key] = counts.get(key, 0) + 1
        return counts
