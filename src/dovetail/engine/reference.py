"""Step lists run in memory, in a page of plain Python: the oracle for plans and for the native engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import BadInput, Misuse
from dovetail.plan.steps import ADD, ASK, COPY, DELIVER, FETCH, FINISH, GATE, OFFER, SEND, Route

Array = NDArray[Any]
Message = tuple[int, int, str, Array | None]  # from, to, "sum" | "result" | "ask", values
Finish = Callable[[Array, int], Array]  # the sum, the number of contributors -> the result


def mean(total: Array, count: int) -> Array:
    """The usual end of an all-reduce."""
    return total / count


@dataclass(slots=True)
class Outcome:
    """What each contributor got, and the bytes each node sent to each peer (`early`: before any gate opened)."""

    results: dict[int, Array] = field(default_factory=dict)
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    early: Counter[tuple[int, int]] = field(default_factory=Counter)

    def sent_by(self, node: int) -> int:
        return sum(nbytes for (source, _), nbytes in self.sent.items() if source == node)

    def sent_across(self, groups: Sequence[Sequence[int]]) -> int:
        """Bytes whose two ends are in different groups."""
        home = {node: g for g, group in enumerate(groups) for node in group}
        return sum(nbytes for (a, b), nbytes in self.sent.items() if home[a] != home[b])


def run(
    routes: Sequence[Route],
    contributions: Sequence[Array],
    *,
    chunks: Sequence[int] | None = None,
    finish: Finish = mean,
    order: random.Random | None = None,
) -> Outcome:
    """Aggregate the workers' flat arrays: chunk i (an even share of them) follows route `chunks[i]`.

    By default there is one chunk a route. `order` picks which message on its way arrives next; else the oldest.
    """
    if len({array.shape for array in contributions}) != 1:
        raise BadInput(f"arrays of shapes {[a.shape for a in contributions]} cannot be summed; give equal ones")
    chosen = list(chunks) if chunks is not None else list(range(len(routes)))
    pieces = [np.array_split(array, len(chosen)) for array in contributions]
    outcome = Outcome()
    parts: dict[int, list[Array]] = {}
    for i, route in enumerate(chosen):
        gradients = {node: pieces[node][i] for node in range(len(contributions))}
        for node, result in _run_chunk(routes[route], gradients, finish, order, outcome).items():
            parts.setdefault(node, []).append(result)
    outcome.results = {node: np.concatenate(arrays) for node, arrays in parts.items()}
    return outcome


def _run_chunk(
    route: Route, gradients: dict[int, Array], finish: Finish, order: random.Random | None, outcome: Outcome
) -> dict[int, Array]:
    nodes = {node: _Node(node, route, gradients, finish) for node in route}
    flying: list[Message] = []
    gates_open = False
    for node in nodes.values():
        flying += node.advance(gates_open)
    while True:
        while flying:
            source, target, what, values = flying.pop(order.randrange(len(flying)) if order else 0)
            if values is not None:
                outcome.sent[source, target] += values.nbytes
                if not gates_open:
                    outcome.early[source, target] += values.nbytes
            nodes[target].inbox[source, what] = values
            flying += nodes[target].advance(gates_open)
        if gates_open:
            break
        gates_open = True  # every backward pass is over
        for node in nodes.values():
            flying += node.advance(gates_open)
    stuck = [n for n, node in nodes.items() if node.at < len(route[n])]
    if stuck:
        raise Misuse(f"node {stuck[0]} waits forever in {route[stuck[0]][nodes[stuck[0]].at]}")
    return {n: node.delivered for n, node in nodes.items() if node.delivered is not None}


class _Node:
    """One node's walk through its program for one chunk."""

    def __init__(self, number: int, route: Route, gradients: dict[int, Array], finish: Finish) -> None:
        self.number, self.program, self.finish = number, route[number], finish
        self.gradients = gradients
        self.contributors = sum(step.op == FETCH for program in route.values() for step in program)
        self.inbox: dict[tuple[int, str], Array | None] = {}
        self.value: Array | None = None  # the partial sum, later the result
        self.state = "sum"
        self.at = 0
        self.delivered: Array | None = None

    def advance(self, gates_open: bool) -> list[Message]:
        """Take steps until one has to wait; the messages that this sends."""
        out: list[Message] = []
        while self.at < len(self.program):
            op, peers = self.program[self.at].op, self.program[self.at].peers
            needs = {ADD: "sum", COPY: "result", OFFER: "ask"}.get(op)
            if (needs and any((p, needs) not in self.inbox for p in peers)) or (op == GATE and not gates_open):
                break
            if op == FETCH:
                self._add(self.gradients[self.number])
            elif op == ADD:
                for peer in peers:  # in the step's order whatever the arrival order: two runs give the same bits
                    self._add(self.inbox.pop((peer, "sum")))
            elif op == COPY:
                self.value, self.state = self.inbox.pop((peers[0], "result")), "result"
            elif op == FINISH:
                assert self.value is not None, "FINISH comes after FETCH or ADD"
                self.value, self.state = self.finish(self.value, self.contributors), "result"
            elif op in (SEND, OFFER):
                out += [(self.number, peer, self.state, self.value) for peer in peers]
            elif op == ASK:
                out.append((self.number, peers[0], "ask", None))
            elif op == DELIVER:
                self.delivered = self.value
            self.at += 1
        return out

    def _add(self, values: Array | None) -> None:
        self.value = values if self.value is None or values is None else self.value + values
