"""One rank's side of a job: submit gradients, wait for results, and hear in clear words who was lost."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dovetail import timeline
from dovetail.engine.binding import RECEIVE, SEND, UPDATE, engine_error
from dovetail.engine.control import Leave, pack
from dovetail.engine.opening import Opened, Options, Request, open_job, table_of
from dovetail.engine.peers import Store
from dovetail.engine.rule import Hyper, Rule
from dovetail.engine.table import LANE, ROUTE, Table, TensorSpec
from dovetail.engine.usage import Usage
from dovetail.errors import DovetailError, Misuse, PeerLost, in_a_line
from dovetail.plan.schedule import Plan

__all__ = ["Hyper", "Options", "Rule", "Session"]

T = TypeVar("T")

SLICE = 0.25  # seconds of one native wait, so that Ctrl-C is heard
WITH_HUBS = ("hub", "rack-hubs")  # patterns that use dedicated hubs
_LANES = {SEND: timeline.SEND, RECEIVE: timeline.RECEIVE, UPDATE: timeline.UPDATE}


class PathInfo(NamedTuple):
    """A connection by the kernel's own count (TCP_INFO)."""

    peer: int
    lane: int
    rtt: float  # seconds, smoothed
    delivered: float  # bytes per second, the latest sample
    busy: float  # seconds with something to send, since the start
    acked: int  # bytes confirmed, since the start


class Session:
    """Tensors are numbered as they were given; iterations count 1, 2, 3, ...

    Memory behind a pointer must stay valid until the iteration is complete; no call copies it.
    """

    def __init__(self, opened: Opened, *, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.labels = opened.labels
        self.table: Table = opened.table
        self.iteration = 0
        self._job = opened.job
        self._request = opened.request
        self._programs = opened.table.for_node(rank).programs  # as the job has them
        self._empty = frozenset(i for i, t in enumerate(opened.table.tensors) if t.nbytes == 0)
        self._error = engine_error()
        self._gave_up: DovetailError | None = None  # what this rank itself ended the job with
        # Also when the script ends or the session is dropped: peers must not take an end for a loss.
        self._goodbye = weakref.finalize(self, _say_goodbye, opened)

    @classmethod
    def open(
        cls,
        *,
        store: Store,
        rank: int,
        world: int,
        plan: Plan,
        tensors: Sequence[TensorSpec],
        hubs: Sequence[str] = (),
        rule: Rule | None = None,
        options: Options | None = None,
        namespace: str = "default",
    ) -> Session:
        """Meet the other ranks and the hubs and be ready to train; all ranks call it together."""
        request = Request(
            rank=rank,
            world=world,
            plan=plan,
            tensors=tuple(tensors),
            hubs=tuple(hubs) if plan.aggregation in WITH_HUBS else (),
            rule=rule or Rule(),
            options=options or Options(),
            namespace=namespace,
        )
        return cls(open_job(store, request), rank=rank, world=world)

    @property
    def chunk_bytes(self) -> int:
        """What a tensor is cut into at most."""
        return self._request.options.chunk_bytes or self._request.plan.chunk_bytes

    @property
    def pattern(self) -> str:
        """Who sums what, by its name in plan/patterns.py."""
        return self._request.plan.aggregation

    # --- memory and masters ---

    def bind(self, tensor: int, ptr: int) -> None:
        """New values of the tensor are written here (when the update runs at the aggregator)."""
        self._job.bind(tensor, ptr)

    def put(self, tensor: int, slot: int, ptr: int, *, step: int = 0) -> None:
        """Set the masters' copy (slot 0 value, 1.. optimizer state) from here; one rank does it for all."""
        if tensor not in self._empty:
            self._guard(lambda: self._job.put(tensor, slot, ptr, step))

    def get(self, tensor: int, slot: int, ptr: int, *, version: int = 0) -> bool:
        """Read the masters' copy to `ptr` once it has seen `version` updates; False when there is none yet."""
        if tensor in self._empty:
            return True
        begun = time.monotonic()
        ticket = self._guard(lambda: self._job.get(tensor, slot, ptr, version))
        got = 0
        try:
            while not got:
                got = self._guard(lambda: self._job.wait_get(ticket, SLICE), begun=begun)
        finally:
            if not got:
                self._job.cancel_get(ticket)  # interrupted: the memory is the caller's again
        return got == 1

    def step_of(self, tensor: int) -> int:
        """How many updates the copy had seen that `get` read last."""
        return self._job.get_step(tensor)

    def extend(
        self,
        programs: list[list[tuple[int, list[int]]]],
        tensors: list[tuple[int, int, int]],
        chunks: npt.NDArray[np.int64],
        transfers: list[list[int]],
        *,
        divisor: int,
    ) -> None:
        """Add to the running job's table; numbers count on from what is there, and all ranks add the same."""
        windows = [0] * len(transfers)
        self._guard(lambda: self._job.extend(programs, tensors, chunks, transfers, windows, divisor))
        self._programs += programs

    def share_out(self, shares: Sequence[float] | None) -> Table:
        """The table in which ranks get these shares of the masters' work; nothing changes yet."""
        table = table_of(self._request, lanes=self.table.lanes, shares=shares)
        rows = table.rows.copy()
        rows[:, LANE] = self.table.rows[:, LANE]  # a chunk stays with its thread
        return replace(table, chunks=rows.tobytes())

    def reroute(self, table: Table) -> None:
        """Follow this table from `share_out` from the next iteration on.

        All ranks have all results before the first one calls it, and none submits before the last one has.
        """
        view = table.for_node(self.rank)
        known = view.programs == self._programs[: len(view.programs)]
        more = [] if known else view.programs
        first = 0 if known else len(self._programs)
        self._guard(lambda: self._job.reroute(more, (view.chunks[:, ROUTE] + first).tolist()))
        self._programs += more
        self.table = table

    def retire(self, tensors: Sequence[int]) -> None:
        """Free what these tensors use; they are complete here, and no rank will submit them again."""
        self._job.retire(list(tensors))

    # --- one iteration ---

    def begin(self, iteration: int, hypers: Sequence[Hyper] = ()) -> None:
        """Start an iteration; `hypers` are the numbers of each parameter group."""
        if iteration != self.iteration + 1:
            raise Misuse(f"iteration {iteration} begins after {self.iteration}; they count one by one")
        self.iteration = iteration
        for group, hyper in enumerate(hypers):
            self._guard(lambda g=group, h=hyper: self._job.hyper(iteration, g, h.values))  # type: ignore[misc]

    def submit(self, tensor: int, iteration: int, ptr: int, more: bool = False) -> None:
        """The gradient is in memory at `ptr`; 0 = this rank has none this iteration.

        `more`: others follow soon and `backward_done` after them, so a small one may wait for company.
        """
        if tensor not in self._empty:
            try:
                self._job.submit(tensor, iteration, ptr, more)
            except self._error as error:
                raise self._lost(error, 0.0) from None

    def backward_done(self, iteration: int) -> None:
        """The backward pass is over: what waited for that may travel."""
        self._job.backward_done(iteration)

    def release(self, iteration: int) -> None:
        """Bound memory may be written with the results of this iteration from now on."""
        self._job.release(iteration)

    def wait(self, tensors: Iterable[int], iteration: int, *, timeout: float | None = None) -> bool:
        """Wait until their results are in place; False after `timeout` seconds, PeerLost when they never will be."""
        due = [t for t in tensors if t not in self._empty]
        begun = time.monotonic()
        end = None if timeout is None else begun + timeout
        while True:
            span = SLICE if end is None else max(0.0, min(SLICE, end - time.monotonic()))
            try:
                if not due or self._job.wait(due, iteration, span):
                    return True
            except self._error as error:
                raise self._lost(error, time.monotonic() - begun) from None
            if end is not None and time.monotonic() >= end:
                return False

    def news(self, seen: int, *, timeout: float) -> int:
        """Wait until more than `seen` results and nudges have come since the start; how many have by now.

        PeerLost when no more will come. For a thread of its own, which is not woken for each call that it waits for.
        """
        return self._guard(lambda: self._job.news(seen, timeout))

    def nudge(self) -> None:
        """Wake who waits for `news`."""
        self._job.nudge()

    @property
    def measures(self) -> bool:
        """Whether ranks complete all sums, so that their `squares` make up the whole."""
        return all(root < self.world for root in self.table.roots())

    def watch_squares(self, iteration: int) -> None:
        """Make ready for `squares`; call it before the iteration's first `submit`."""
        self._job.watch_squares(iteration)

    def squares(self, iteration: int, *, timeout: float | None = None) -> float | None:
        """Wait for the sums that this rank completes, and no longer; the sum of the squares of their results.

        None after `timeout` seconds.
        """
        begun = time.monotonic()
        found: float | None = None
        while found is None and (timeout is None or time.monotonic() - begun < timeout):
            found = self._guard(lambda: self._job.squares(iteration, SLICE), begun=begun)
        return found

    def completed(self, tensor: int) -> int:
        """The last iteration whose result is in place."""
        return self.iteration if tensor in self._empty else self._job.completed(tensor)

    def absent(self, tensor: int) -> bool:
        """Whether no rank had a gradient in the last completed iteration."""
        return tensor not in self._empty and self._job.absent(tensor)

    # --- what happened ---

    def paths(self) -> list[PathInfo]:
        """Every link as the kernel sees it."""
        return [PathInfo(*found) for found in self._job.paths()]

    def spans(self, *, origin: float = 0.0) -> list[timeline.Span]:
        """What was sent, received and updated since the last call, in seconds of time.monotonic() after `origin`."""
        tensors = self.table.tensors
        return [
            timeline.Span(
                node=f"worker {self.rank}",
                lane=_LANES[kind],
                name=tensors[tensor].name if 0 <= tensor < len(tensors) else "",
                start=start * 1e-9 - origin,
                end=end * 1e-9 - origin,
                iteration=iteration,
                nbytes=nbytes,
                peer=self._short(peer),
                priority=priority,
            )
            for kind, tensor, _, peer, iteration, start, end, nbytes, priority in self._job.events()
            if kind in _LANES
        ]

    def counters(self) -> dict[str, int]:
        """Bytes, frames, sums and updates since the start."""
        return self._job.counters()

    def usage(self) -> Usage:
        """Use of the links since the start."""
        return Usage(busy=self._job.counters()["busy_ns"] * 1e-9, sent=self._job.sent_by_priority())

    def check(self) -> None:
        """Raise PeerLost if the job has failed."""
        failure = self._job.failure()
        if failure is not None:
            raise self._lost_of(*failure, waited=0.0)

    def fail(self, reason: str, *, error: DovetailError | None = None) -> None:
        """Tell everybody that this rank gives up, and stop; every call here raises `error` from then on."""
        self._gave_up = error
        self._job.fail(self.rank, reason)

    # --- the end ---

    def close(self) -> None:
        """Say goodbye, so that others do not report a loss; calling it again does nothing."""
        self._goodbye()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, PeerLost) and self._goodbye.alive:
            self.fail(in_a_line(error))
        self.close()

    def _guard(self, call: Callable[[], T], *, begun: float | None = None) -> T:
        try:
            return call()
        except self._error as error:
            waited = 0.0 if begun is None else time.monotonic() - begun
            raise self._lost(error, waited) from None

    def _lost(self, error: Exception, waited: float) -> DovetailError:
        peer, reason, step = error.args
        return self._lost_of(peer, reason, step, waited=waited)

    def _lost_of(self, peer: int, reason: str, step: int, *, waited: float) -> DovetailError:
        if peer == self.rank and self._gave_up is not None:
            return self._gave_up
        label = self.labels[peer] if 0 <= peer < len(self.labels) else "a peer"
        address = label.rpartition(" at ")[2]
        after = f" (we had waited {waited:.1f} s)" if waited else ""
        return PeerLost(f"{label}: {reason} in step {step}{after}", peer=peer, address=address, step=step)

    def _short(self, peer: int) -> str:
        if not 0 <= peer < len(self.labels):
            return ""
        return f"worker {peer}" if peer < self.world else f"hub {peer - self.world}"


def _say_goodbye(opened: Opened) -> None:
    opened.job.close()
    for sock in opened.controls:
        with contextlib.suppress(OSError):
            sock.settimeout(1.0)
            sock.sendall(pack(Leave()))
        sock.close()
