"""The plan as data: which bytes travel together, how urgently, and when they may start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dovetail.errors import BadInput
from dovetail.plan.verify import check_coverage, check_edges, check_windows
from dovetail.trace.graph import Param

Part = tuple[str, int, int]  # parameter, offset, nbytes

PUSH = "push"  # gradients, worker -> aggregator
PULL = "pull"  # values, aggregator -> worker
REDUCE = "reduce"  # both in one: push, aggregate, and the result comes back by itself
KINDS = (PUSH, PULL, REDUCE)

BACKWARD = "backward"  # may start as soon as its data is there
FORWARD = "forward"  # may start only when the backward pass is over
WINDOWS = (BACKWARD, FORWARD)

LEAST_CHUNK = 64  # bytes
CHUNK_BYTES = 60 * 1024  # with its header it fills one unit of TCP, and no second, nearly empty one
BULK_CHUNK_BYTES = 2 * CHUNK_BYTES  # where nothing more urgent comes and each rank sends to one other
MOST_BULK_CHUNK_BYTES = 4 * BULK_CHUNK_BYTES  # sums of still larger ones would not stay in a core's cache


@dataclass(frozen=True, slots=True)
class Transfer:
    """Parts that travel as one; it is ready when the last of its gradients (or updates) is."""

    kind: str  # one of KINDS
    parts: tuple[Part, ...]
    priority: int = 0  # the smaller number goes first and overtakes at chunk borders
    depth: int = 1  # it travels in at least so many chunks, so that summing one overlaps receiving the next
    window: str = BACKWARD  # one of WINDOWS

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple((n, o, b) for n, o, b in self.parts))
        if self.kind not in KINDS:
            raise BadInput(f"transfer kind {self.kind!r} is unknown; it is one of {', '.join(KINDS)}")
        if self.window not in WINDOWS:
            raise BadInput(f"transfer window {self.window!r} is unknown; it is one of {', '.join(WINDOWS)}")
        if self.depth < 1:
            raise BadInput(f"transfer depth is {self.depth}; it must be 1 or more")

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, _, nbytes in self.parts)

    def chunk_bytes(self, most: int) -> int:
        """Size of its chunks where none may exceed `most`: equal shares of its depth, or smaller."""
        return max(LEAST_CHUNK, min(most, -(-self.nbytes // self.depth)))

    @property
    def params(self) -> tuple[str, ...]:
        """Names of its parameters, each once, in order."""
        return tuple(dict.fromkeys(name for name, _, _ in self.parts))

    def split(self, max_bytes: int, *, itemsizes: Mapping[str, int] | None = None) -> Iterator[Transfer]:
        """The same bytes as transfers of at most `max_bytes` each, in order; `itemsizes` keeps elements whole."""
        if max_bytes < 1:
            raise BadInput(f"slices of {max_bytes} bytes; give 1 or more")
        batch: list[Part] = []
        room = max_bytes
        for name, offset, nbytes in self.parts:
            width = itemsizes[name] if itemsizes else 1
            if nbytes == 0:
                batch.append((name, offset, 0))
            while nbytes > 0:
                if room < min(width, nbytes) and batch:
                    yield self._with(batch)
                    batch, room = [], max_bytes
                # An element wider than the limit goes alone: it cannot be cut.
                take = min(max(room - room % width, width), nbytes)
                batch.append((name, offset, take))
                offset, nbytes, room = offset + take, nbytes - take, room - take
                if room <= 0:
                    yield self._with(batch)
                    batch, room = [], max_bytes
        if batch:
            yield self._with(batch)

    def _with(self, parts: list[Part]) -> Transfer:
        return Transfer(self.kind, tuple(parts), self.priority, self.depth, self.window)


def bulk_chunk_bytes(aggregation: str, nbytes: int = 0, ranks: int = 1) -> int:
    """Size of chunks among which none is urgent: large ones cost the cores less, but fill queues where several meet.

    Around a ring the last one's way adds at most a hundredth to the time that all `nbytes` need.
    """
    if aggregation != "ring":
        return CHUNK_BYTES
    return max(BULK_CHUNK_BYTES, min(nbytes // (100 * ranks) // LEAST_CHUNK * LEAST_CHUNK, MOST_BULK_CHUNK_BYTES))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One iteration's communication, the same on every rank; a plan that exists is valid."""

    policy: str
    params: tuple[Param, ...]
    transfers: tuple[Transfer, ...]
    edges: tuple[tuple[str, str], ...] = ()  # op pairs (before, after) that fix the computation order
    barrier: bool = False  # the next forward pass starts only when everything has arrived
    aggregation: str = "shuffle"  # a pattern of plan/patterns.py
    update: str = "worker"  # where the optimizer runs: "worker" or "hub"
    chunk_bytes: int = CHUNK_BYTES  # what a more urgent transfer can overtake
    keep: float = 1.0  # share of gradient values that travel; below 1 changes results
    fingerprint: str = ""  # of the profile it was made for

    def __post_init__(self) -> None:
        if self.update not in ("worker", "hub"):
            raise BadInput(f"update at {self.update!r} is unknown; it is 'worker' or 'hub'")
        if self.chunk_bytes < LEAST_CHUNK:
            raise BadInput(f"chunks of {self.chunk_bytes} bytes; give {LEAST_CHUNK} or more")
        if not 0 < self.keep <= 1:
            raise BadInput(f"keep is {self.keep}; it is a share above 0 and at most 1")
        check_coverage(self.params, self.transfers)
        check_windows(self.transfers)
        check_edges(self.edges)

    @property
    def order(self) -> list[str]:
        """Parameter names by urgency of their values (pulls, or reduces)."""
        incoming = [t for t in self.transfers if t.kind != PUSH]
        ranked = sorted(incoming, key=lambda t: t.priority)  # stable: equal priorities keep the plan's order
        return list(dict.fromkeys(name for t in ranked for name in t.params))

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.params)
