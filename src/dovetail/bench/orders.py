"""What the conductor of `bench train` and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.timeline import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained; `compute` is seconds an iteration, None = a real small network."""

    model: str
    scale: float
    compute: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A worker's place: the system it runs and what that works with."""

    system: str
    workload: Workload
    hubs: tuple[str, ...] = ()
    rate: float = 0.0  # bytes per second; above 0 where the system itself must keep to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Run a variant of the system: some iterations to warm up, some that count, and one to end in step."""

    variant: str
    warmup: int
    iterations: int
    trace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A worker's first words."""

    nbytes: int  # of all parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a worker saw, in seconds of the monotonic clock; `boundaries` are the iterations' beginnings and the end."""

    boundaries: tuple[float, ...]
    spans: tuple[Span, ...]
    weights: float  # sum over all parameters: equal on all ranks, or the run is worth nothing
