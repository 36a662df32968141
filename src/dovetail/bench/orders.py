"""What the conductors of benches and their workers say to each other; all instants are of the monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.bench.bounds import Groups
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.model import Link
from dovetail.timeline import Span

GLOO, MPI, MPI_RING = "gloo", "mpi", "mpi-ring"  # each an `aggregation` beside those of the engine


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
    hubs: tuple[str, ...] = ()
    groups: Groups | None = None  # racks, for the patterns that know them
    rate: float = 0.0  # bytes per second; above 0 where the system itself must keep to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Train with a variant of the system: some iterations to warm up, some that count, and one to end in step."""

    workload: Workload
    variant: str
    warmup: int
    iterations: int
    trace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A worker's first words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a worker saw; `boundaries` are the iterations' beginnings and the end of the last."""

    boundaries: tuple[float, ...]
    spans: tuple[Span, ...]
    nbytes: int  # of all parameters
    weights: float  # sum over all parameters: equal on all ranks, or the run is worth nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SumPost:
    """A worker's place in `bench allreduce`."""

    hubs: tuple[str, ...] = ()
    groups: Groups | None = None
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOrder:
    """Sum a tensor of `nbytes` this many times; `aggregation` is one of the above or a pattern of the engine."""

    aggregation: str
    nbytes: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SumReply:
    """Seconds of each sum; empty as first words."""

    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPost:
    """A worker's place in `bench rank`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOrder:
    """Sum `nbytes` with Gloo this many times, rank r on host `hosts[r]`; without hosts, probe them instead."""

    hosts: tuple[int, ...] = ()
    nbytes: int = 0
    times: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RingReply:
    """Seconds of each sum, or what the probe found; neither as first words."""

    seconds: tuple[float, ...] = ()
    matrix: ProbeMatrix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentPost:
    """A worker's place in `bench urgent`; sizes in bytes."""

    large: int
    small: int
    samples: int  # small tensors in one round
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentOrder:
    """One round: the small ones go first if `urgent`, else they queue behind the large one; `gap` seconds apart."""

    urgent: bool
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentReply:
    """Rank 0's submissions or rank 1's arrivals of the small tensors; empty as first words."""

    instants: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPost:
    """A worker's place in the measurement that predictions start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOrder:
    """Time small and large transfers between the first two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReply:
    """The link that fits best, and the fit's mean relative error."""

    link: Link | None = None
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPost:
    """A place in `bench pull`: rank 0 holds the training job, the others pull; `compute` is a forward pass."""

    workload: Workload
    hub: str
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOrder:
    """Pull parameters with these priorities (the smaller first) under a forward pass, as the job `namespace`."""

    namespace: str
    priorities: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReply:
    """Seconds from the start of the pull to the end of the forward pass; None from rank 0 and as first words."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadPost:
    """A worker's place in `bench overhead`: many small parameters, and a step that takes `step` seconds."""

    params: int
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadOrder:
    """So many steps, distributed or alone."""

    distributed: bool
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadReply:
    """Seconds of a step: all, those beside the layers' labour, and of cores; as first words, what is trained."""

    wall: float = 0.0
    beside: float = 0.0
    cpu: float = 0.0
    params: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePost:
    """A worker's place in `bench autotune`."""

    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOrder:
    """So many steps with autotune, or with the masters' work shared out like this (None = evenly)."""

    tuned: bool
    steps: int
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReply:
    """When steps began and the last one ended, and the bytes each rank sends in one; empty as first words."""

    instants: tuple[float, ...] = ()
    loads: tuple[float, ...] = ()
