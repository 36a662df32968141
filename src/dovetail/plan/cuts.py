"""Cutting a row of layers into batches: the true cost of a cut, the best one, and iBatch's two greedy ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from dovetail.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Row:
    """Layers in order of use: pulling some costs `startup` plus their transfers, then they compute."""

    startup: float  # Ts
    transfer: tuple[float, ...]  # Tt of each layer
    compute: tuple[float, ...]  # C of each layer

    def __post_init__(self) -> None:
        if len(self.transfer) != len(self.compute) or not self.transfer:
            raise BadInput(
                f"{len(self.transfer)} transfer and {len(self.compute)} compute times; give one of each per layer"
            )

    @cached_property
    def sent(self) -> list[float]:
        """sent[l]: transfer time of the first l layers."""
        return list(accumulate(self.transfer, initial=0.0))

    @cached_property
    def done(self) -> list[float]:
        """done[l]: compute time of the first l layers."""
        return list(accumulate(self.compute, initial=0.0))

    def __len__(self) -> int:
        return len(self.transfer)


def makespan(row: Row, cuts: list[int]) -> float:
    """When the last batch is computed, by the two-thread pipeline; `cuts` are the last layers of the batches."""
    comm = comp = 0.0
    begin = 0
    for end in cuts:
        comm += row.startup + (row.sent[end] - row.sent[begin])
        comp = max(comp, comm) + (row.done[end] - row.done[begin])
        begin = end
    return comp


def optimal_cuts(row: Row) -> list[int]:
    """The cuts of least makespan, with the fewest batches that reach it.

    The makespan is the largest, over batches k, of "k is here" plus "compute from k on". So for a given bound the
    farthest cut that keeps it is the best at every step, and the least bound is found by bisection and descent.
    """
    best = [len(row)]
    cost = makespan(row, best)
    low = row.startup + max(row.sent[-1], row.transfer[0] + row.done[-1])
    for _ in range(50):
        bound = (low + cost) / 2
        cuts = _within(row, bound)
        if cuts is None:
            low = bound
        elif (found := makespan(row, cuts)) < cost:
            best, cost = cuts, found
        if not low < cost:
            break
    # Bisection ends near the optimum; each further step moves to a strictly better cut, so the end is exact.
    while (cuts := _within(row, cost, strict=True)) is not None and (found := makespan(row, cuts)) < cost:
        best, cost = cuts, found
    return best


def _within(row: Row, bound: float, *, strict: bool = False) -> list[int] | None:
    """Cuts with a makespan of at most `bound` (below it if strict), farthest first; None if there are none."""
    slack = bound - row.done[-1]
    reach = bisect_left if strict else bisect_right
    cuts: list[int] = []
    begin = 0
    while begin < len(row):
        end = reach(row.sent, slack + row.done[begin] - (len(cuts) + 1) * row.startup) - 1
        if end <= begin:
            return None
        cuts.append(end)
        begin = end
    return cuts


def better_greedy(row: Row) -> list[int]:
    """The better of the paper's two."""
    return min(greedy_from_first(row), greedy_from_last(row), key=lambda cuts: makespan(row, cuts))


def greedy_from_first(row: Row) -> list[int]:
    """Algorithm 1: the first batch hides as much compute as it can, each next cut hides the batch before it."""
    sent, done, last = row.sent, row.done, len(row)
    feasible = [first for first in range(1, last) if row.startup + sent[last] - sent[first] >= done[first]]
    if not feasible:
        return [last]
    first = max(feasible, key=lambda l1: (done[l1], -sent[l1]))
    cuts = [0, first]
    while cuts[-1] < last:
        hidden = done[cuts[-1]] - done[cuts[-2]]
        # The least difference is the nearest cut that still hides the batch; without one, the rest is one batch.
        nearest = max(cuts[-1] + 1, bisect_left(sent, hidden - row.startup + sent[cuts[-1]]))
        cuts.append(min(nearest, last))
    return cuts[1:]


def greedy_from_last(row: Row) -> list[int]:
    """Algorithm 2: the same from the other end; the last pull hides as much compute as it can."""
    sent, done, last = row.sent, row.done, len(row)

    def earliest(cut: int, end: int) -> int:
        """The first layer boundary from which computing up to `cut` hides behind pulling up to `end`."""
        return bisect_left(done, done[cut] - (row.startup + sent[end] - sent[cut]))

    pairs = [(cut, earliest(cut, last)) for cut in range(1, last)]
    feasible = [(cut, before) for cut, before in pairs if before < cut]
    if not feasible:
        return [last]
    cut, before = max(feasible, key=lambda pair: (done[pair[0]] - done[pair[1]], done[pair[0]]))
    cuts = [last, cut]
    while before > 0:
        cuts.append(before)
        start = earliest(before, cuts[-2])
        before = start if start < before else 0
    return cuts[::-1]
