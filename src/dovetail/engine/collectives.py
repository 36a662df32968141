"""Collectives on tensors that no plan knows: a channel per kind of call, made at its first use.

All ranks make the same calls in the same order, so each finds the same channel without asking, and closes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dovetail.engine.session import Session
from dovetail.engine.table import DTYPES, OP_CODES, PULL_WINDOW, ROUTE
from dovetail.errors import BadInput
from dovetail.plan.partition import spread
from dovetail.plan.schedule import bulk_chunk_bytes
from dovetail.plan.steps import ADD, DELIVER, FETCH, FINISH, SEND, root_of

IN_FLIGHT = 4  # calls of one kind that may be under way at once
KEPT_KINDS = 1024  # whose channels stay open; those used least recently are closed first
KEPT_BYTES = 2 << 30  # of all open channels' tensors, over all ranks
LEAST_CHUNK = 4096  # bytes; smaller pieces cost more in headers than they gain in parallel links

Steps = list[tuple[int, list[int]]]


class Kind(NamedTuple):
    """What makes two calls alike: they can share a channel, one after the other."""

    call: str  # "reduce", "gather" or "scatter"
    nbytes: int  # of one piece
    dtype: str
    divisor: int
    priority: int


@dataclass(slots=True)
class _Channel:
    tensors: range
    iteration: int = 0


@dataclass(slots=True)
class _Used:
    """A kind that has been called: its channels take turns."""

    channels: list[_Channel]
    nbytes: int  # of one channel
    calls: int = 0
    last: int = 0  # its last call, counted over all kinds


class Pending(NamedTuple):
    """A call under way; its memory belongs to the engine until `wait` returns True."""

    session: Session
    tensors: range
    iteration: int

    def wait(self, timeout: float | None = None) -> bool:
        """True when the results are in place, False after `timeout` seconds; PeerLost when they never will be."""
        return self.session.wait(self.tensors, self.iteration, timeout=timeout)

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self.arrived or self.wait(timeout=0.0)

    @property
    def arrived(self) -> bool:
        """Whether the results are in place; says nothing of a job that has failed."""
        completed, iteration = self.session.completed, self.iteration
        for tensor in self.tensors:  # noqa: SIM110  # a generator costs more than all the rest
            if completed(tensor) < iteration:
                return False
        return True


class Collectives:
    """The calls of one job whose session was opened with any small plan over the wanted pattern.

    Tensors are cut into chunks of `chunk_bytes`, or of the plan's size and larger where the pattern gains by it.
    """

    def __init__(
        self,
        session: Session,
        *,
        chunk_bytes: int | None = None,
        kept_kinds: int = KEPT_KINDS,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        table = session.table
        if table.hubs:
            raise BadInput("collectives run among the ranks; open them over a pattern without hubs, like 'shuffle'")
        self._session = session
        self._chunk_bytes = chunk_bytes
        self._tensors, self._transfers = len(table.tensors), len(table.transfers)
        self._programs = len(table.for_node(session.rank).programs)
        self._scatter: int | None = None  # the number of the first scatter program, once they are there
        self._kept_kinds, self._kept_bytes = kept_kinds, kept_bytes
        self._kinds: dict[Kind, _Used] = {}
        self._calls = 0
        self._open_bytes = 0
        self._roots = [root_of(route) for route in table.routes]

    # `waits`: the caller waits for the result next, so that little may leave on its own thread then.

    def all_reduce(
        self, ptr: int, nbytes: int, dtype: str, *, divisor: int = 1, priority: int = 0, waits: bool = False
    ) -> Pending:
        """Replace the memory at `ptr` by the sum over all ranks, divided by `divisor`."""
        return self._start(Kind("reduce", nbytes, dtype, divisor, priority), [ptr], present=[True], waits=waits)

    def try_all_reduce(self, ptr: int, nbytes: int, dtype: str, *, divisor: int = 1) -> Pending | None:
        """As `all_reduce`; None where it would have to wait for an earlier call of its kind.

        Raises only when the engine has let go of all memory. It may wait for a channel that it closes for a new one.
        """
        kind = Kind("reduce", nbytes, dtype, divisor, 0)
        used = self._kinds.get(kind)
        if used is not None and len(used.channels) == IN_FLIGHT:
            channel = used.channels[used.calls % IN_FLIGHT]
            if not Pending(self._session, channel.tensors, channel.iteration).done():
                return None
        return self._start(kind, [ptr], present=[True], waits=False)

    def broadcast(
        self, ptr: int, nbytes: int, dtype: str, *, root: int, priority: int = 0, waits: bool = False
    ) -> Pending:
        """Give every rank the root's bytes: a sum to which only the root contributes, so all links share the work."""
        mine = [self._session.rank == root]
        return self._start(Kind("reduce", nbytes, dtype, 1, priority), [ptr], present=mine, waits=waits)

    def all_gather(
        self, ptrs: Sequence[int], nbytes: int, dtype: str, *, priority: int = 0, waits: bool = False
    ) -> Pending:
        """Piece k comes from rank k; `ptrs[k]` is where it lies there and goes everywhere else."""
        self._check_pieces(ptrs, "all_gather")
        mine = [self._session.rank == k for k in range(len(ptrs))]
        return self._start(Kind("gather", nbytes, dtype, 1, priority), ptrs, present=mine, waits=waits)

    def reduce_scatter(
        self,
        ptrs: Sequence[int],
        nbytes: int,
        dtype: str,
        *,
        divisor: int = 1,
        priority: int = 0,
        waits: bool = False,
    ) -> Pending:
        """Sum piece k over all ranks into rank k's memory at `ptrs[k]`; the other pieces stay as they are."""
        self._check_pieces(ptrs, "reduce_scatter")
        kind = Kind("scatter", nbytes, dtype, divisor, priority)
        return self._start(kind, ptrs, present=[True] * len(ptrs), waits=waits)

    def gather_channel(self, nbytes: int, dtype: str, *, priority: int = 0) -> range:
        """Tensors of the session, one a rank, whose bytes go from that rank to all; the caller submits them itself."""
        self._check_roots("gather_channel")
        return self._open(Kind("gather", nbytes, dtype, 1, priority), self._session.world)

    def _check_pieces(self, ptrs: Sequence[int], call: str) -> None:
        if len(ptrs) != self._session.world:
            raise BadInput(f"{call} got {len(ptrs)} pieces for {self._session.world} ranks; give one a rank")
        self._check_roots(call)

    def _check_roots(self, call: str) -> None:
        missing = set(range(self._session.world)) - set(self._roots)
        if missing:
            raise BadInput(f"{call} needs a pattern in which every rank is a root; open it over 'shuffle' or 'ring'")

    def _start(self, kind: Kind, ptrs: Sequence[int], *, present: Sequence[bool], waits: bool) -> Pending:
        if kind.dtype not in DTYPES:
            raise BadInput(f"the engine cannot sum {kind.dtype!r}; it sums {', '.join(DTYPES)}")
        session = self._session
        if kind.nbytes == 0:
            return Pending(session, range(0), 0)
        channel = self._next_channel(kind, len(ptrs))
        channel.iteration += 1
        for tensor, ptr, here in zip(channel.tensors, ptrs, present, strict=True):
            if not here:
                session.bind(tensor, ptr)
            session.submit(tensor, channel.iteration, ptr if here else 0, more=waits)
        return Pending(session, channel.tensors, channel.iteration)

    def _next_channel(self, kind: Kind, pieces: int) -> _Channel:
        """The kind's channels in turn, each opened at its first use; free when it returns."""
        used = self._kinds.get(kind)
        if used is None:
            used = self._kinds[kind] = _Used([], kind.nbytes * pieces)
        self._calls += 1
        used.last = self._calls
        number = used.calls % IN_FLIGHT
        used.calls += 1
        if number == len(used.channels):
            used.channels.append(_Channel(self._open(kind, pieces)))
            self._open_bytes += used.nbytes
            self._close_oldest()
        channel = used.channels[number]
        before = Pending(self._session, channel.tensors, channel.iteration)
        if not before.arrived:
            before.wait()
        return channel

    def _close_oldest(self) -> None:
        """Keep to the limits; what is closed follows from the order of calls alone, so it is the same on every rank."""
        while len(self._kinds) > 1 and (len(self._kinds) > self._kept_kinds or self._open_bytes > self._kept_bytes):
            used = self._kinds.pop(min(self._kinds, key=lambda kind: self._kinds[kind].last))
            for channel in used.channels:
                self._session.wait(channel.tensors, channel.iteration)
                self._session.retire(channel.tensors)
                self._open_bytes -= used.nbytes

    def _open(self, kind: Kind, pieces: int) -> range:
        """Add the channel's tensors, one a piece, to the running job."""
        code, itemsize = DTYPES[kind.dtype]
        programs: list[Steps] = []
        if kind.call == "scatter" and self._scatter is None:
            programs = [self._scatter_program(k) for k in range(pieces)]
            self._scatter = self._programs
        rows = [self._rows(kind, k, itemsize) for k in range(pieces)]
        tensors = range(self._tensors, self._tensors + pieces)
        transfers = [[tensor] for tensor in tensors]
        self._session.extend(
            programs, [(kind.nbytes, code, 0)] * pieces, np.concatenate(rows), transfers, divisor=kind.divisor
        )
        self._tensors += pieces
        self._transfers += pieces
        return tensors

    def _rows(self, kind: Kind, piece: int, itemsize: int) -> npt.NDArray[np.int64]:
        session = self._session
        lanes = session.table.lanes
        most = self._chunk_bytes or session.chunk_bytes
        if most == bulk_chunk_bytes(session.pattern):
            most = bulk_chunk_bytes(session.pattern, kind.nbytes, session.world)
        even = -(-kind.nbytes // (len(self._roots) * 64)) * 64  # every link takes part where that is worth a frame
        chunk = max(LEAST_CHUNK, min(most, even)) // itemsize * itemsize
        offsets = np.arange(0, kind.nbytes, chunk, dtype=np.int64)
        rows = np.zeros((len(offsets), 9), dtype=np.int64)
        rows[:, 0], rows[:, 1] = self._tensors + piece, offsets
        rows[:, 2] = np.minimum(chunk, kind.nbytes - offsets)
        if kind.call == "reduce":
            rows[:, ROUTE] = spread(rows[:, 2].tolist(), bins=len(self._roots))
        elif kind.call == "gather":
            rows[:, ROUTE] = self._roots.index(piece)
        else:
            assert self._scatter is not None
            rows[:, ROUTE] = self._scatter + piece
        rows[:, 4] = np.arange(len(offsets)) // len(self._roots) % lanes
        rows[:, 5] = rows[:, 6] = kind.priority
        rows[:, 7] = self._transfers + piece
        rows[:, PULL_WINDOW] = 0
        return rows

    def _scatter_program(self, root: int) -> Steps:
        """Sums go straight to the root and stay there."""
        rank, world = self._session.rank, self._session.world
        if rank != root:
            steps = [(FETCH, []), (SEND, [root]), (DELIVER, [])]
        else:
            others = [r for r in range(world) if r != root]
            steps = [(FETCH, []), *([(ADD, others)] if others else []), (FINISH, []), (DELIVER, [])]
        return [(OP_CODES[op], peers) for op, peers in steps]
