"""The JSON forms that benches give."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


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
    machines: int
    workers: int
    iteration_s: Times
    floor_s: float
    bound_s: float
    alpha: float | None  # None where there is nothing to overlap, or the links could not be watched
    cpu_idle: float


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
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult:
    """One size of one system; `bound_s` is the busiest link's bytes over the measured rate."""

    nbytes: int
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
