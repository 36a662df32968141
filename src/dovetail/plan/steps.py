"""What one node does with one chunk, as a list of steps: the only language the engine speaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dovetail.errors import BadInput

FETCH = "fetch"  # the local gradient joins the sum
ADD = "add"  # a partial sum from each of `peers` joins the sum
SEND = "send"  # what we have goes to each of `peers`: the partial sum before COPY/FINISH, the result after it
COPY = "copy"  # the result comes from the one peer
FINISH = "finish"  # the sum is complete: take the mean, or run the optimizer here
GATE = "gate"  # go on only when this node's backward pass is over (split all-reduce: the second half)
DELIVER = "deliver"  # the result is written to the caller's buffer
ASK = "ask"  # request the result from the one peer, when the pull's window is open
OFFER = "offer"  # the result goes to each of `peers` when it asks
OPS = (FETCH, ADD, SEND, COPY, FINISH, GATE, DELIVER, ASK, OFFER)


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `peers` are node numbers (workers first, then dedicated hubs)."""

    op: str
    peers: tuple[int, ...] = ()


Program = tuple[Step, ...]
Route = dict[int, Program]  # node -> what it does with a chunk of this route


def root_of(route: Route) -> int:
    """The node at which the sum is complete."""
    return next(node for node, program in route.items() if any(step.op == FINISH for step in program))


@dataclass(slots=True)
class _Walk:
    """Where one node is in its program; the sum counts whose gradients are in it."""

    at: int = 0
    total: Counter[int] = field(default_factory=Counter)
    done: bool = False  # it holds the result


def check_route(route: Route) -> None:
    """Raise unless every gradient is counted once, every contributor gets the result, and nothing is left waiting."""
    _check_form(route)
    contributors = Counter(n for n, program in route.items() if any(step.op == FETCH for step in program))
    walks = {node: _Walk() for node in route}
    mail: dict[tuple[int, int, str], Counter[int]] = {}
    asked: set[tuple[int, int]] = set()
    moved = True
    while moved:
        moved = False
        for node, program in route.items():
            walk = walks[node]
            while walk.at < len(program) and _take(node, program[walk.at], walk, mail, asked, contributors):
                walk.at += 1
                moved = True
    stuck = [n for n in route if walks[n].at < len(route[n])]
    if stuck:
        step = route[stuck[0]][walks[stuck[0]].at]
        raise BadInput(f"route: node {stuck[0]} waits forever in {step.op} for {list(step.peers)}")
    if mail:
        source, target, what = next(iter(mail))
        raise BadInput(f"route: the {what} that node {source} sends to node {target} is never received")


def _check_form(route: Route) -> None:
    for node, program in route.items():
        ops = [step.op for step in program]
        if set(ops) - set(OPS):
            raise BadInput(f"route: node {node} has the unknown step {min(set(ops) - set(OPS))!r}")
        if (FETCH in ops) != (DELIVER in ops) or ops.count(FETCH) > 1 or ops.count(DELIVER) > 1:
            raise BadInput(f"route: node {node} must fetch once and deliver once, or neither; it has {ops}")
        strangers = {p for step in program for p in step.peers} - (set(route) - {node})
        if strangers:
            raise BadInput(f"route: node {node} names node {min(strangers)}, which is not another node of the route")
    roots = sum(step.op == FINISH for program in route.values() for step in program)
    if roots != 1:
        raise BadInput(f"route: the sum is finished at {roots} nodes; it must be exactly 1")


def _take(
    node: int,
    step: Step,
    walk: _Walk,
    mail: dict[tuple[int, int, str], Counter[int]],
    asked: set[tuple[int, int]],
    contributors: Counter[int],
) -> bool:
    """Do the step if its messages are there; raise if it would give a wrong result."""
    needs = {ADD: "sum", COPY: "result"}.get(step.op)
    if needs and any((peer, node, needs) not in mail for peer in step.peers):
        return False
    if step.op == OFFER and any((peer, node) not in asked for peer in step.peers):
        return False
    if step.op == FETCH:
        walk.total[node] += 1
    elif step.op == ADD:
        for peer in step.peers:
            walk.total += mail.pop((peer, node, "sum"))
    elif step.op in (COPY, FINISH):
        if step.op == COPY:
            walk.total = mail.pop((step.peers[0], node, "result"))
        if walk.total != contributors:
            missing = contributors - walk.total or walk.total - contributors
            raise BadInput(f"route: node {node} {step.op}s a sum that counts node {min(missing)} wrongly")
        walk.done = True
    elif step.op in (SEND, OFFER):
        what = "result" if walk.done else "sum"
        for peer in step.peers:
            if (node, peer, what) in mail:
                raise BadInput(f"route: node {node} sends the {what} to node {peer} twice")
            mail[node, peer, what] = Counter(walk.total)
    elif step.op == ASK:
        asked.add((node, step.peers[0]))
    if step.op in (DELIVER, OFFER, GATE) and not walk.done:
        raise BadInput(f"route: node {node} comes to {step.op} before it has the result")
    return True
