"""The JSON forms that benches give."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.bench.bounds import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Of one or more measured times."""
        return cls(median=statistics.median(seconds), min=min(seconds), max=max(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemResult:
    """How one system trained; `variant` is the best of those it was tried with, `alpha` the overlap it reached."""

    name: str
    variant: str
    policy: str  # dovetail's name for the schedule
    machines: int
    workers: int
    iteration_s: Times
    floor_s: float
    paced_s: float  # the slowest worker's, with busy links: what each iteration takes before it waits for transfers
    bound_s: float
    alpha: float | None  # None where there is nothing to overlap, or the links could not be watched
    cpu_idle: float
    predicted_s: float | None = None  # the simulator's iteration time, if asked for

    @property
    def label(self) -> str:
        """What tells it from the other rows."""
        return self.name if self.name == self.variant else f"{self.name} ({self.variant})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """`bench train`; rates in bytes per second, 0 = unshaped."""

    bench: str
    model: str
    scale: float
    workers: int
    rate: float
    measured_rate: float
    bytes: int
    compute_s: float
    systems: tuple[SystemResult, ...]
    startup_s: float | None = None  # of a transfer, fitted in the same run for the predictions
    network: Network | None = None  # what predictions are made for
    notes: tuple[str, ...] = ()

    @property
    def measured_best(self) -> SystemResult:
        """The fastest row."""
        return min(self.systems, key=lambda s: s.iteration_s.median)

    @property
    def predicted_best(self) -> SystemResult | None:
        """The row that the simulator takes for the fastest; among equals the one that is listed first."""
        rows = [s for s in self.systems if s.predicted_s is not None]
        return min(rows, key=lambda s: s.predicted_s or 0.0) if rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult:
    """One size of one system; `bound_s` is the busiest link's bytes over the measured rate."""

    nbytes: int
    pattern: str  # which `auto` chose for this size, or the system's only one
    median_s: float
    min_s: float
    max_s: float
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceResult:
    """One system's sizes."""

    name: str
    machines: int
    sizes: tuple[SizeResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceResult:
    """`bench allreduce`."""

    bench: str
    workers: int
    rate: float
    measured_rate: float
    systems: tuple[ReduceResult, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedOrder:
    """One order of hosts: what a sum is predicted to take in it, and what it took."""

    name: str  # best, worst, given or random
    hosts: tuple[int, ...]  # by rank
    predicted_s: float
    sum_s: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """`bench rank`; `racks[i]` is where host i stands, `groups` what probing took for racks."""

    bench: str
    workers: int
    rate: float
    uplink: float
    measured_rate: float
    nbytes: int
    racks: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    racks_found: bool  # the groups are the racks exactly
    orders: tuple[RankedOrder, ...]
    spearman: float  # predicted against measured, over ten orders evenly spaced by prediction
    spearman_all: float  # over all orders
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentResult:
    """`bench urgent`: from submission of a small chunk at one host to its arrival at the other, in both orders."""

    bench: str
    rate: float
    measured_rate: float
    small_bytes: int
    large_bytes: int
    priority_s: Times
    fifo_s: Times
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderResult:
    """One order of pulls; `pass_s` is from the start of the pull to the end of the forward pass."""

    order: str
    pass_s: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """`bench pull`; `compute_s` is the forward pass alone, `bound_s` the longer of it and the bytes' way."""

    bench: str
    model: str
    scale: float
    clients: int
    rate: float
    measured_rate: float
    bytes: int
    compute_s: float
    bound_s: float
    orders: tuple[OrderResult, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """Of many values on a noisy machine: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Middle:
        """Of one value or more."""
        low, median, high = (
            statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
        )
        return cls(median=median, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadResult:
    """`bench overhead`: what rank 0's distributed step takes more than the plain step beside it, as parts of that."""

    bench: str
    workers: int
    params: int
    bytes: int
    plain_s: Times
    calls: Middle  # time beside the layers' labour: submitting and waiting
    wall: Middle
    cpu: Middle
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that something took, and how many parameters or transfers it was about."""

    what: str
    count: int
    seconds: float


ENOUGH = 0.9  # of the best fixed schedule's speed: training has recovered


@dataclass(frozen=True, slots=True, kw_only=True)
class StateResult:
    """One state of the network: a step untuned, under the best fixed schedule, and tuned after the grace."""

    state: str
    untuned_s: float
    best_s: float
    best: str
    tuned_s: Times
    of_best: float  # share of the best fixed schedule's speed
    recovered_after: int | None  # steps; None = it never was


@dataclass(frozen=True, slots=True, kw_only=True)
class AutotuneResult:
    """`bench autotune`; `balance` is the most over the least bytes that a rank sends at the end."""

    bench: str
    model: str
    workers: int
    rate: float
    measured_rate: float
    bytes: int
    cut: float
    grace: int
    states: tuple[StateResult, ...]
    steady_ratio: Times  # tuned over untuned
    balance: float
    notes: tuple[str, ...] = ()
