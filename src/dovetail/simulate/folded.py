"""A cluster of equal workers folded into one worker and one aggregator, where the pattern loads all alike.

A chunk's two phases (sums to the root, result back) each load every resource class by a fixed multiple of its bytes;
that is what it occupies. A chunk that is alone takes at least as long as its own way through the route: that delays
it but holds up no other. Both follow from the routes, in closed form where building them all would be slow.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from dovetail.network.model import Cluster, Host
from dovetail.plan.steps import FINISH, OFFER, SEND
from dovetail.simulate.network import Path
from dovetail.simulate.paths import GATHER, SPREAD, Moves, compile_route, lone_chunk, routes_of, two_node_program
from dovetail.simulate.work import Work

WORKER_OUT, WORKER_IN, HUB_OUT, HUB_IN, UP, DOWN = range(6)
_SMALL = 24  # nodes up to which racks are simulated node by node: folding them is off by up to a tenth
_LARGE = 128  # nodes up to which all routes are built to find their loads


@dataclass(frozen=True, slots=True)
class Load:
    """What one phase asks of each member of a resource class."""

    share: dict[int, float]  # class -> multiples of a chunk's bytes that one resource of the class carries
    rounds: int  # messages that follow one another
    starts: float  # messages of different rounds that an average sender begins per chunk
    lone: float  # seconds per byte for a chunk on its own


@dataclass(frozen=True, slots=True)
class Fold:
    """Both phases, and the number of roots that share the work."""

    gather: Load
    spread: Load
    roots: int
    root_is_worker: bool


def fold(cluster: Cluster, aggregation: str) -> Fold | None:
    """The folded form of this pattern on this cluster, or None where nodes are not all alike."""
    if len({(h.link, h.interfaces, h.cores) for h in cluster.workers}) > 1:
        return None
    if len({(h.link, h.interfaces, h.cores) for h in cluster.hubs}) > 1 or cluster.workers[0].interfaces > 1:
        return None
    if len(cluster.workers) < 2:
        return None
    nodes = len(cluster.workers) + len(cluster.hubs)
    if not cluster.uplinks:
        return _closed_form(cluster, aggregation) or (derive(cluster, aggregation) if nodes <= _LARGE else None)
    if nodes <= _SMALL:
        return None
    return _racked_form(cluster, aggregation) or (derive(cluster, aggregation) if nodes <= _LARGE else None)


def _closed_form(cluster: Cluster, aggregation: str) -> Fold | None:
    count, spb = len(cluster.workers), 1 / cluster.workers[0].link.bandwidth
    even = (count - 1) / count
    both = {WORKER_OUT: even, WORKER_IN: even}
    if aggregation == "shuffle":
        lone = (count - 1) * spb
        return Fold(Load(both, 1, even, lone), Load(both, 1, 1 / count, lone), count, True)
    if aggregation == "ring":
        load = Load(both, count - 1, even, (count - 1) * spb)
        return Fold(load, load, count, True)
    if aggregation == "halving-doubling" and count & (count - 1) == 0:
        rounds = int(math.log2(count))
        # On the way back half of the nodes pass a chunk on, the nearest first, so the largest branch starts last.
        back = Load(both, rounds, 0.5, rounds * (rounds + 1) / 2 * spb)
        return Fold(Load(both, rounds, even, rounds * spb), back, count, True)
    if aggregation == "hub" and cluster.hubs:
        hub = cluster.hubs[0]
        servers = len(cluster.hubs) * hub.interfaces
        lone = max(spb, count / hub.link.bandwidth)
        return Fold(
            Load({WORKER_OUT: 1.0, HUB_IN: count / servers}, 1, 1.0, lone),
            Load({HUB_OUT: count / servers, WORKER_IN: 1.0}, 1, 1 / len(cluster.hubs), lone),
            len(cluster.hubs),
            False,
        )
    return None


def _racked_form(cluster: Cluster, aggregation: str) -> Fold | None:
    """The closed form where every rack has as many workers, and an equal uplink."""
    sizes = Counter(host.rack for host in cluster.workers)
    if len(set(sizes.values())) > 1 or set(sizes) != set(cluster.uplinks) or len(set(cluster.uplinks.values())) > 1:
        return None
    racks, inside = len(sizes), next(iter(sizes.values()))
    count, spb = racks * inside, 1 / cluster.workers[0].link.bandwidth
    even = (count - 1) / count
    if aggregation == "shuffle":
        crossing = inside * (racks - 1) / racks
        share = {WORKER_OUT: even, WORKER_IN: even, UP: crossing, DOWN: crossing}
        lone = (count - 1) * spb
        return Fold(Load(share, 1, even, lone), Load(share, 1, 1 / count, lone), count, True)
    if aggregation == "two-level":
        crossing = (racks - 1) / racks
        share = {WORKER_OUT: even, WORKER_IN: even, UP: crossing, DOWN: crossing}
        there = (inside - 1 + racks - 1) * spb
        back = there + (inside - 1) * spb
        return Fold(Load(share, 2, even, there), Load(share, 2, 1 / inside, back), count, True)
    return None


def derive(cluster: Cluster, aggregation: str) -> Fold | None:
    """The loads counted message by message over all routes, or None where they differ between equal nodes."""
    routes = [compile_route(route) for route in routes_of(aggregation, cluster)]
    hosts = cluster.workers + cluster.hubs
    workers = len(cluster.workers)
    phases = []
    for phase in (GATHER, SPREAD):
        loads = [_loads(moves, phase, hosts, workers, cluster) for moves in routes]
        share = _even(loads, cluster)
        if share is None:
            return None
        phases.append((share, loads))
    spb = [1 / host.link.bandwidth for host in hosts]
    alone = [lone_chunk(moves, spb) for moves in routes]
    roots = {n for moves in routes for n, found in moves.items() if any(m.op == FINISH for m in found)}
    made = []
    for phase, (share, _) in enumerate(phases):
        sends = [
            (n, m.round) for r in routes for n, f in r.items() for m in f if m.op in (SEND, OFFER) and m.phase == phase
        ]
        senders = max(1, len({n for n, _ in sends}))
        rounds = [
            len({m.round for f in r.values() for m in f if m.op in (SEND, OFFER) and m.phase == phase}) for r in routes
        ]
        starts = len(sends) / len(routes) / senders
        made.append(Load(share, max(rounds), starts, max(pair[phase] for pair in alone)))
    return Fold(made[0], made[1], len(roots), all(r < workers for r in roots))


def _loads(
    moves: Moves, phase: int, hosts: tuple[Host, ...], workers: int, cluster: Cluster
) -> Counter[tuple[int, int | str]]:
    """(class, member) -> messages of the phase that pass it."""
    count: Counter[tuple[int, int | str]] = Counter()
    for node, found in moves.items():
        for move in found:
            if move.op not in (SEND, OFFER) or move.phase != phase:
                continue
            for peer in move.peers:
                count[WORKER_OUT if node < workers else HUB_OUT, node] += 1
                count[WORKER_IN if peer < workers else HUB_IN, peer] += 1
                if hosts[node].rack != hosts[peer].rack:
                    for rack, way in ((hosts[node].rack, UP), (hosts[peer].rack, DOWN)):
                        if rack in cluster.uplinks:
                            count[way, rack] += 1
    return count


def _even(loads: list[Counter[tuple[int, int | str]]], cluster: Cluster) -> dict[int, float] | None:
    total: Counter[tuple[int, int | str]] = Counter()
    for load in loads:
        total.update(load)
    if cluster.uplinks and len(set(cluster.uplinks.values())) > 1:
        return None
    faces = cluster.hubs[0].interfaces if cluster.hubs else 1
    members = {WORKER_OUT: len(cluster.workers), WORKER_IN: len(cluster.workers)}
    members |= {HUB_OUT: len(cluster.hubs), HUB_IN: len(cluster.hubs), UP: len(cluster.uplinks)}
    members[DOWN] = members[UP]
    share: dict[int, float] = {}
    for kind, expected in members.items():
        found = [count for (k, _), count in total.items() if k == kind]
        if found and (len(found) != expected or max(found) != min(found)):
            return None
        if found:
            share[kind] = found[0] / len(loads) / (faces if kind in (HUB_OUT, HUB_IN) else 1)
    return share


class FoldedNetwork:
    """The network of the folded cluster: node 0 is every worker, node 1 every aggregator."""

    def __init__(self, work: Work, cluster: Cluster, folded: Fold, chunk_bytes: int) -> None:
        self.resources = 6
        self.workers = range(1)
        hub = "worker 0" if folded.root_is_worker else "hub 0"
        self.names = ["worker 0", hub]
        root = cluster.workers[0] if folded.root_is_worker else cluster.hubs[0]
        self.cores = [cluster.workers[0].cores, 1]
        self.update_share = [1.0, 1 / (folded.roots * root.cores)]
        self.gated = False
        self._moves = two_node_program()
        self._fold, self._chunk = folded, chunk_bytes
        self._pulled = [len(pull.chunks) for pull in work.pulls]
        self._startup = (cluster.workers[0].link.startup, root.link.startup)
        speed = {WORKER_OUT: cluster.workers[0].link.bandwidth, WORKER_IN: cluster.workers[0].link.bandwidth}
        if cluster.hubs:
            speed |= {HUB_OUT: cluster.hubs[0].link.bandwidth, HUB_IN: cluster.hubs[0].link.bandwidth}
        latency = 0.0
        if cluster.uplinks:
            uplink = next(iter(cluster.uplinks.values()))
            speed |= {UP: uplink.bandwidth, DOWN: uplink.bandwidth}
            latency = 2 * uplink.startup
        self._paths = (
            _path(0, folded.gather, (WORKER_OUT, HUB_OUT), speed, latency),
            _path(
                1, folded.spread, (HUB_OUT, WORKER_OUT) if not folded.root_is_worker else (WORKER_OUT,), speed, latency
            ),
        )

    def moves(self, chunk: int) -> Moves:
        return self._moves

    def path(self, chunk: int, source: int, target: int, phase: int) -> Path:
        return self._paths[phase]

    def startup(self, source: int, phase: int, nbytes: int) -> tuple[float, float]:
        load = (self._fold.gather, self._fold.spread)[phase]
        begun = min(float(load.rounds), max(1.0, nbytes / self._chunk) * load.starts)
        return self._startup[source] * begun, self._startup[source] * (load.rounds - begun)

    def port(self, worker: int) -> tuple[int, float]:
        return WORKER_OUT, self._startup[0]

    def at_root(self, pull: int, node: int) -> int:
        return self._pulled[pull]

    def worker_of(self, node: int) -> int:
        return 0


def _path(number: int, load: Load, queues: tuple[int, ...], speed: dict[int, float], latency: float) -> Path:
    port = next((q for q in queues if q in load.share), WORKER_OUT)
    rest = [kind for kind in load.share if kind != port]
    legs = tuple((kind, load.share[kind] / speed[kind]) for kind in (port, *rest) if kind in load.share)
    return Path(port, (number,), legs, latency if UP in load.share else 0.0, load.lone)
