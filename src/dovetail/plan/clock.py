"""When ops run on one worker that never waits for the network: the papers' time oracle."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.trace.graph import Op, Profile


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Instants of one undisturbed iteration that begins at 0."""

    order: tuple[str, ...]  # ops as they run
    produced: dict[str, float]  # parameter -> its gradient is complete (never: the end)
    read: dict[str, float]  # parameter -> its first reader starts (never: the end of the forward pass)
    forward_end: float
    end: float


def undisturbed(profile: Profile, edges: Iterable[tuple[str, str]] = ()) -> Clock:
    """One op after the other in the profile's order, as far as `edges` (before, after) allow it."""
    now = 0.0
    ends: dict[str, float] = {}
    produced: dict[str, float] = {}
    read: dict[str, float] = {}
    order = reordered(profile, edges)
    for op in order:
        for name in op.reads:
            read.setdefault(name, now)
        now += op.time
        ends[op.name] = now
        if op.produces is not None:
            produced[op.produces] = now
    forward_end = max((ends[op.name] for op in profile.ops[: profile.backward_start]), default=0.0)
    return Clock(
        order=tuple(op.name for op in order),
        produced={p.name: produced.get(p.name, now) for p in profile.params},
        read={p.name: read.get(p.name, forward_end) for p in profile.params},
        forward_end=forward_end,
        end=now,
    )


def reordered(profile: Profile, edges: Iterable[tuple[str, str]]) -> tuple[Op, ...]:
    """The profile's ops in the order nearest to their own that also respects `edges`."""
    index = profile.op_index
    extra: dict[int, set[int]] = {}
    for before, after in edges:
        extra.setdefault(index[after], set()).add(index[before])
    if not extra:
        return profile.ops
    users: list[list[int]] = [[] for _ in profile.ops]
    waiting = [0] * len(profile.ops)
    for i, op in enumerate(profile.ops):
        needs = {index[name] for name in op.inputs} | extra.get(i, set())
        waiting[i] = len(needs)
        for need in needs:
            users[need].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[Op] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(profile.ops[i])
        for user in users[i]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    return tuple(order)
