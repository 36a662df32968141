"""Caramel's computation order: gradients that are cheap to complete come first, and on every worker alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dovetail.network.model import Cluster
from dovetail.plan.linkcost import picoseconds
from dovetail.plan.reads import bit_matrix
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile

_CHOSEN = np.int64(2**62)  # above every cost, even after what is done has been taken off


def best_order(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Add the edges that leave the cheapest order of gradients as the only one."""
    return replace(plan, edges=order_edges(profile, activation_order(profile)))


def activation_order(profile: Profile) -> list[str]:
    """Gradients by the greedy rule: the one whose ops not yet done take the least time goes next."""
    made = _producers(profile)
    names = list(made)
    users = _users(profile, made)
    distinct = list(dict.fromkeys(users))
    number = {mask: i for i, mask in enumerate(distinct)}
    waits = bit_matrix(distinct, len(names))  # class of ops x gradient
    times = [picoseconds(op.time) for op in profile.ops]
    cost = _class_times(range(len(users)), users, times, number) @ waits
    done: set[int] = set()
    order = []
    for _ in names:
        # Columns follow the producing ops, and among equals argmin takes the first: else ops of no time could put a
        # gradient before one that it depends on.
        nxt = int(np.argmin(cost))
        order.append(names[nxt])
        cost[nxt] = _CHOSEN
        fresh = _missing_ancestors(profile, made[names[nxt]], done)
        done |= fresh
        finished = _class_times(fresh, users, times, number)
        for i in np.flatnonzero(finished).tolist():
            cost[waits[i]] -= finished[i]
    return order


def _class_times(
    ops: Iterable[int], users: list[int], times: list[int], number: dict[int, int]
) -> npt.NDArray[np.int64]:
    """Time of the given ops, summed by class (the ops that the same gradients wait for)."""
    total = np.zeros(len(number), dtype=np.int64)
    for i in ops:
        total[number[users[i]]] += times[i]
    return total


def order_edges(profile: Profile, order: list[str]) -> tuple[tuple[str, str], ...]:
    """Edges from the op that completes each gradient to the ops ready to run among those the next one needs."""
    made, index = _producers(profile), profile.op_index
    done: set[int] = set()
    edges: list[tuple[str, str]] = []
    previous: int | None = None
    for name in order:
        fresh = _missing_ancestors(profile, made[name], done)
        for i in sorted(fresh):
            inputs = {index[n] for n in profile.ops[i].inputs}
            free = inputs <= done
            if free and previous is not None and previous not in inputs:
                edges.append((profile.ops[previous].name, profile.ops[i].name))
        done |= fresh
        previous = made[name]
    return tuple(edges)


def _producers(profile: Profile) -> dict[str, int]:
    return {op.produces: i for i, op in enumerate(profile.ops) if op.produces is not None}


def _users(profile: Profile, made: dict[str, int]) -> list[int]:
    """For each op, the gradients that wait for it; bit g = the g-th of `made`."""
    users = [0] * len(profile.ops)
    for column, i in enumerate(made.values()):
        users[i] = 1 << column
    for i in range(len(profile.ops) - 1, -1, -1):
        for name in profile.ops[i].inputs:
            users[profile.op_index[name]] |= users[i]
    return users


def _missing_ancestors(profile: Profile, target: int, done: set[int]) -> set[int]:
    found: set[int] = set()
    stack = [target]
    while stack:
        i = stack.pop()
        if i in done or i in found:
            continue
        found.add(i)
        stack.extend(profile.op_index[name] for name in profile.ops[i].inputs)
    return found
