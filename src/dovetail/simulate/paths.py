"""How a chunk's steps use the network: the programs of every route, with the round each message belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.errors import BadInput
from dovetail.network.model import Cluster
from dovetail.plan import patterns
from dovetail.plan.steps import ADD, COPY, DELIVER, FETCH, FINISH, OFFER, SEND, Route

GATHER, SPREAD = 0, 1  # what a message carries: a partial sum, or the result


@dataclass(frozen=True, slots=True)
class Move:
    """One step with its messages numbered: `awaits` is the set of messages (a bit each) that must have come."""

    op: str
    peers: tuple[int, ...] = ()
    awaits: int = 0
    phase: int = GATHER
    round: int = 0  # 1 for messages that depend on no other, 2 for those that wait for one, ...


Moves = dict[int, tuple[Move, ...]]


def message_bit(source: int, phase: int) -> int:
    """The bit that stands for a message from `source`."""
    return 1 << (2 * source + phase)


def routes_of(aggregation: str, cluster: Cluster) -> list[Route]:
    """The pattern's routes on this cluster; racks are its groups."""
    racks: dict[str, list[int]] = {}
    for number, host in enumerate(cluster.workers):
        racks.setdefault(host.rack, []).append(number)
    groups = list(racks.values()) if len(racks) > 1 else None
    return patterns.routes(aggregation, workers=len(cluster.workers), hubs=len(cluster.hubs), groups=groups)


def compile_route(route: Route) -> Moves:
    """The route's steps with rounds; raises when some node would wait forever."""
    at = dict.fromkeys(route, 0)
    depth = dict.fromkeys(route, 0)
    came: dict[int, dict[int, int]] = {node: {} for node in route}
    moves: dict[int, list[Move]] = {node: [] for node in route}
    phase = dict.fromkeys(route, GATHER)
    todo = list(route)
    while todo:
        node = todo.pop()
        program = route[node]
        while at[node] < len(program):
            step = program[at[node]]
            wanted = GATHER if step.op == ADD else SPREAD
            bits = [message_bit(p, wanted) for p in step.peers] if step.op in (ADD, COPY) else []
            if any(bit not in came[node] for bit in bits):
                break
            depth[node] = max([depth[node], *(came[node][bit] for bit in bits)])
            if step.op in (COPY, FINISH):
                phase[node] = SPREAD
            moves[node].append(Move(step.op, step.peers, sum(bits), phase[node], depth[node] + 1))
            if step.op in (SEND, OFFER):
                for peer in step.peers:
                    came[peer][message_bit(node, phase[node])] = depth[node] + 1
                    todo.append(peer)
            at[node] += 1
    stuck = [node for node in route if at[node] < len(route[node])]
    if stuck:
        raise BadInput(f"node {stuck[0]} of a route waits forever in {route[stuck[0]][at[stuck[0]]]}")
    return {node: tuple(found) for node, found in moves.items()}


def lone_chunk(moves: Moves, spb: Sequence[float]) -> tuple[float, float]:
    """Seconds per byte until the last node has the sum, then the result, when one chunk has the network to itself."""
    ready = dict.fromkeys(moves, 0.0)
    out, into = dict.fromkeys(moves, 0.0), dict.fromkeys(moves, 0.0)
    sends = sorted(
        (move.phase, move.round, node, peer)
        for node, found in moves.items()
        for move in found
        if move.op in (SEND, OFFER)
        for peer in move.peers
    )
    summed = 0.0
    for phase, _, node, peer in sends:
        begin = max(ready[node], out[node])
        out[node] = begin + spb[node]
        begin = max(begin, into[peer])
        into[peer] = begin + spb[peer]
        ready[peer] = max(ready[peer], out[node], into[peer])
        summed = max(summed, ready[peer]) if phase == GATHER else summed
    return summed, max(ready.values(), default=0.0) - summed


def two_node_program() -> Moves:
    """The route of a cluster folded into one worker (0) and one aggregator (1)."""
    sent, back = message_bit(0, GATHER), message_bit(1, SPREAD)
    return {
        0: (
            Move(FETCH),
            Move(SEND, (1,), 0, GATHER, 1),
            Move(COPY, (1,), back, SPREAD),
            Move(DELIVER, (), 0, SPREAD),
        ),
        1: (Move(ADD, (0,), sent), Move(FINISH, (), 0, SPREAD), Move(SEND, (0,), 0, SPREAD, 2)),
    }
