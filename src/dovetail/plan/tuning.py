"""Quicktune and Finetune: who masters how much, by what the kernel sees of the network. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.plan.patterns import Groups

Floats = NDArray[np.float64]
Shares = tuple[float, ...]

# A node seen with this share of the fast nodes' bandwidth is as fast as they are. Kernels measure roughly: alike links
# are seen at 0.57 to 1 of each other. But a link at 75 % is seen at 0.1 to 0.3 where all wait for it: its own streams
# share it all the time, the others' hardly ever.
ALIKE = 0.5
LOAD, TIME = 0.5, 0.5  # beta and gamma: how much bytes and how much seconds count for blame
BALANCED = 1.2  # epsilon: most over least blame at which nothing is moved any more
UNIT = 0.25  # of an even share: what a node loses at its first offence; twice that at the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The network in some rounds, as the kernels of all ranks saw it."""

    seconds: float  # of a round, at the slowest rank
    rates: Floats  # [i, j]: bytes per second from i to j while i had something for j
    trips: Floats  # [i]: the longest round trip of rank i, seconds


def even(count: int) -> Shares:
    """The same for everybody."""
    return (1 / count,) * count


def relative(rates: Floats) -> Floats:
    """What each node's link was seen to carry, over what the fast ones were, from 0 to 1.

    A slow node is slow with everybody, so the median over its peers tells, whichever way; a fast node's median does
    not feel one slow peer. It is what the link can carry only where everybody has the same to send.
    """
    count = len(rates)
    peers = ~np.eye(count, dtype=bool)
    ways = np.stack([rates[peers].reshape(count, -1), rates.T[peers].reshape(count, -1)])
    if not (ways > 0).all():
        return _relative_of_some(ways)
    both = np.median(ways, axis=2).min(axis=0)
    return np.asarray(np.minimum(both / np.percentile(both, 75), 1.0))


def _relative_of_some(ways: Floats) -> Floats:
    """Where not all pairs exchange anything, as in two levels: those that do tell; who has none counts as fast."""
    both = np.array([[np.median(row[row > 0]) if (row > 0).any() else np.inf for row in way] for way in ways])
    least = both.min(axis=0)
    known = least[np.isfinite(least)]
    return np.asarray(np.minimum(least / np.percentile(known, 75), 1.0)) if len(known) else np.ones(len(least))


def speeds(rates: Floats) -> Floats:
    """The same, but nodes nearly as fast as the fast ones count as such."""
    found = relative(rates)
    return np.where(found >= ALIKE, 1.0, found)


def fill(speed: Sequence[float] | Floats, *, extra: float) -> Floats:
    """Shares w (of 1) that make the largest (1 + w_i extra) / speed_i the least: everyone moves the model once anyway.

    In proportion to speed alone a slow node would master too much, since that one time already takes it long.
    """
    found = np.asarray(speed, dtype=np.float64)
    if extra <= 0 or not found.max() > 0:
        return np.full(len(found), 1 / len(found))
    fastest_first = -np.sort(-found)
    # If the k fastest master everything, they are ready at (k + extra) / the sum of their speeds.
    level = float(((np.arange(len(found)) + 1 + extra) / np.cumsum(fastest_first)).min())
    weights = np.maximum(level * found - 1, 0.0)
    return np.asarray(weights / weights.sum())


def quicktune(rates: Floats, groups: Groups | None = None) -> Shares:
    """Shares by bandwidth alone.

    With groups: between them in proportion to what their members carry together, inside by what each one carries.
    """
    speed = speeds(rates)
    count = len(speed)
    if groups is None:
        return tuple(fill(speed, extra=count - 2).tolist())
    shares = np.zeros(count)
    for group in groups:
        members = list(group)
        shares[members] = fill(speed[members], extra=len(members) - 1) * speed[members].sum() / speed.sum()
    return tuple(shares.tolist())


def blames(sight: Sight, traffic: Floats) -> Floats:
    """beta l(i) + gamma t(i): how much of the bytes a node carries, and how long it takes for them, over the mean."""
    loads = traffic.sum(axis=1)
    bandwidth = np.where(traffic > 0, sight.rates, 0.0).sum(axis=1)
    times = sight.trips + np.divide(loads, bandwidth, out=np.zeros_like(loads), where=bandwidth > 0)
    mean = float(times.mean())
    return np.asarray(LOAD * loads / max(float(loads.max()), 1.0) + TIME * (times / mean if mean > 0 else 1.0))


def finetune(shares: Shares, blame: Floats, offences: int) -> tuple[Shares, int, int] | None:
    """Move work from the most blamed node that has any to the least blamed, twice as much at each repeated offence.

    Gives the shares, who lost and who won; None where blame is balanced or nobody has anything to lose.
    """
    holders = [node for node in range(len(shares)) if shares[node] > 0]
    worst = max(holders, key=lambda node: (float(blame[node]), -node))
    best = min(range(len(shares)), key=lambda node: (float(blame[node]), node))
    if worst == best or blame[worst] <= BALANCED * blame[best]:
        return None
    moved = min(shares[worst], UNIT / len(shares) * 2**offences)
    changed = list(shares)
    changed[worst] -= moved
    changed[best] += moved
    return tuple(changed), worst, best
