"""Search over orders of ranks for any cost model: all of them when few, else moves judged in batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from dovetail.network.collective import Model, Orders

EXHAUSTIVE = 8  # up to this many nodes every order is priced: 40320 of them, in milliseconds
BATCH = 64  # neighbours judged at once
STALL = 40  # batches without progress before the next kick
FINE = 0.1  # weight of the finer measure: it shows the way where a maximum is flat


def best_of_all(model: Model, count: int) -> list[int]:
    """The order of least cost; the first in lexical order among equals."""
    orders = np.array(list(itertools.permutations(range(count))), dtype=np.intp)
    return [int(node) for node in orders[int(np.argmin(model(orders)[0]))]]


def best_rotation(model: Model, order: list[int]) -> list[int]:
    """The rotation of `order` of least cost, then of the least finer measure."""
    ranked = []
    for first in range(0, len(order), BATCH):
        shifts = range(first, min(first + BATCH, len(order)))
        costs, fines = model(np.array([order[s:] + order[:s] for s in shifts], dtype=np.intp))
        ranked += list(zip(costs.tolist(), fines.tolist(), shifts, strict=True))
    shift = min(ranked)[2]
    return order[shift:] + order[:shift]


def local_search(
    model: Model, start: list[int], *, rng: np.random.Generator, kicks: int, expired: Callable[[], bool]
) -> list[int]:
    """The best order met from `start` by swaps, reversals and block moves, restarted up to `kicks` times."""
    best = current = np.array(start, dtype=np.intp)
    best_cost, best_fine = (float(v[0]) for v in model(best[None]))
    for kick in range(kicks + 1):
        if kick:
            current = _neighbours(_neighbours(best, rng, 1)[0], rng, 1)[0]
        cost, fine = (float(v[0]) for v in model(current[None]))
        stall = 0
        while stall < STALL:
            if expired():
                return [int(node) for node in best]
            orders = _neighbours(current, rng, BATCH)
            costs, fines = model(orders)
            i = int(np.argmin(costs + FINE * fines))
            stall += 1
            if costs[i] + FINE * fines[i] < (cost + FINE * fine) * (1 - 1e-12):
                current, cost, fine, stall = orders[i], float(costs[i]), float(fines[i]), 0
                if (cost, fine) < (best_cost, best_fine):
                    best, best_cost, best_fine = current, cost, fine
    return [int(node) for node in best]


def _neighbours(order: Orders, rng: np.random.Generator, count: int) -> Orders:
    orders = np.repeat(order[None], count, axis=0)
    kinds = rng.integers(0, 4, size=count)
    for row, kind, (a, b) in zip(orders, kinds, _pairs(len(order), rng, count), strict=True):
        if kind == 0:
            row[[a, b]] = row[[b, a]]
        elif kind == 1:
            row[a : b + 1] = row[a : b + 1][::-1].copy()
        elif kind == 2:  # Or-opt: the run from a to the middle changes places with the rest up to b
            middle = int(rng.integers(a + 1, b + 1))
            row[a : b + 1] = np.concatenate((row[middle : b + 1], row[a:middle]))
        else:  # two aligned blocks change places: what cubes and trees are made of
            size = 1 << int(rng.integers(0, max(1, (len(order) // 2).bit_length())))
            a, b = a // size * size, b // size * size
            if a != b and b + size <= len(order):
                row[a : a + size], row[b : b + size] = row[b : b + size].copy(), row[a : a + size].copy()
    return orders


def _pairs(length: int, rng: np.random.Generator, count: int) -> Iterator[tuple[int, int]]:
    """Random positions a < b."""
    first = rng.integers(0, length, size=count)
    second = (first + rng.integers(1, length, size=count)) % length
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        yield (a, b) if a < b else (b, a)
