"""A dovetail plan on the process group the user has (Gloo, NCCL, MPI): the session's interface, torch's collectives."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from dovetail.c10d.flat import Flat
from dovetail.c10d.limits import never_end, time_limit
from dovetail.c10d.line import DEPTH
from dovetail.c10d.pulse import EVERY, Pulse
from dovetail.c10d.ring import RingScatter
from dovetail.c10d.sequence import GATHER, REDUCE, SCATTER, Call, Load, Seen, as_made, sequence, timed, work_of
from dovetail.engine.rule import Hyper
from dovetail.engine.table import TensorSpec
from dovetail.engine.usage import Usage
from dovetail.errors import BadInput, Misuse, PeerLost
from dovetail.plan.schedule import Plan
from dovetail.plan.verify import check_dense
from dovetail.timeline import RECEIVE, SEND, Span

_HOST = torch.device("cpu")
_UNKNOWN = 125e6  # bytes per second, where the first iteration had nothing to send
_LANES = {SCATTER: (SEND,), GATHER: (RECEIVE,), REDUCE: (SEND, RECEIVE)}


@dataclass(frozen=True, slots=True)
class _Flight:
    call: Call
    work: dist.Work | RingScatter
    iteration: int
    start: float
    whole: torch.Tensor | None = None  # a gather of several loads lands here first


class C10dSession:
    """Training's engine over a process group that nobody else uses; the update runs at the worker.

    One thread issues in the agreed order, one waits for what is under way: backward() is never held up.
    """

    def __init__(
        self, *, group: Any, plan: Plan, tensors: Sequence[TensorSpec], device: torch.device, trace: bool = False
    ) -> None:
        check_dense(plan)
        if plan.update != "worker":
            raise BadInput(f"the plan updates at the {plan.update}; on a process group the update runs at the worker")
        self.rank, self.world, self.iteration = dist.get_rank(group), dist.get_world_size(group), 0
        self._group, self._device, self._trace = group, device, trace
        self._names = [t.name for t in tensors]
        self._index = {name: i for i, name in enumerate(self._names)}
        self._work = work_of(plan, {t.name: t.dtype for t in tensors})
        self._flats = [Flat(load, world=self.world, device=device) for load in self._work.loads]
        # Like DDP's first guess: gradients are made in the reverse order of registration. Then rank 0 tells.
        self._calls = sequence(self._work, as_made(self._names[::-1]))

        self._loads_with: list[list[int]] = [[] for _ in tensors]
        for number, load in enumerate(self._work.loads):
            for name in load.params:
                self._loads_with[self._index[name]].append(number)

        lock = threading.RLock()  # guards all below
        # One condition for each thread that waits: waking those that find nothing to do would cost more than the rest.
        self._to_issue, self._to_land, self._arrived = (threading.Condition(lock) for _ in range(3))
        self._turn = lock
        self._next: Call | None = None  # what the issuing thread waits for
        self._lacking = [0] * len(self._work.loads)  # gradients that have not come yet
        self._sources: dict[str, int] = {}  # where this iteration's gradients are; 0 = absent here
        self._bound = [0] * len(tensors)
        self._missing = [0] * len(tensors)  # loads whose results are still to come
        self._completed = [0] * len(tensors)
        self._present = [True] * len(tensors)
        self._instants = [0.0] * len(tensors)  # of the first iteration: when each gradient came
        self._over_at = 0.0  # and when the backward pass was over
        self._over = 0  # the last iteration whose backward pass has ended
        self._flying: deque[_Flight] = deque()
        self._scattered: set[int] = set()  # loads whose shards are summed
        self._failure: PeerLost | None = None
        self._closing = False
        self._spans: list[Span] = []
        self._count = {"collectives": 0, "bytes_sent": 0, "bytes_received": 0}
        self._busy = self._busy_until = 0.0  # collectives end in the order in which they begin
        self._sent: Counter[int] = Counter()  # by priority
        self._threads = [
            threading.Thread(target=self._guarded, args=(task,), name=f"dovetail c10d {name}", daemon=True)
            for name, task in (("issue", self._issue_all), ("complete", self._complete_all))
        ]
        # Not the group's name: torch counts those from 0 again after all groups were destroyed.
        store = dist.distributed_c10d.PrefixStore(
            f"dovetail/{group.group_desc}", dist.distributed_c10d._get_default_store()
        )
        self._pulse = Pulse(store, rank=self.rank, world=self.world)
        for thread in self._threads:
            thread.start()

    @classmethod
    def open(
        cls, name: str, *, plan: Plan, tensors: Sequence[TensorSpec], device: torch.device = _HOST, trace: bool = False
    ) -> C10dSession:
        """A session over all ranks; they call it together. It has a group of its own, so no other call gets between."""
        group = dist.new_group(backend=dist.get_backend(), timeout=time_limit(device), group_desc=name)
        return cls(group=group, plan=plan, tensors=tensors, device=device, trace=trace)

    # --- one iteration ---

    def bind(self, tensor: int, ptr: int) -> None:
        """The mean is written here when this rank has no gradient."""
        self._bound[tensor] = ptr

    def begin(self, iteration: int, hypers: Sequence[Hyper] = ()) -> None:
        """Start an iteration; the last one must be complete."""
        if hypers:
            raise BadInput("optimizer settings were given, but on a process group the update runs at the worker")
        if iteration != self.iteration + 1:
            raise Misuse(f"iteration {iteration} begins after {self.iteration}; they count one by one")
        self.wait(range(len(self._names)), self.iteration)
        with self._turn:
            self._sources = {}
            self._scattered.clear()
            self._missing = [len(loads) for loads in self._loads_with]
            self._lacking = [len(load.params) for load in self._work.loads]
            self.iteration = iteration
            self._to_issue.notify()

    def submit(self, tensor: int, iteration: int, ptr: int, more: bool = False) -> None:
        """The gradient is in memory at `ptr`; 0 = this rank has none this iteration. `more` changes nothing here."""
        with self._turn:
            self._raise_failure()
            self._sources[self._names[tensor]] = ptr
            if iteration == 1:
                self._instants[tensor] = time.monotonic()
            for number in self._loads_with[tensor]:
                self._lacking[number] -= 1
            if not self._loads_with[tensor]:
                self._completed[tensor] = iteration
            self._go_on()

    def backward_done(self, iteration: int) -> None:
        """The backward pass is over: what waited for that may travel."""
        with self._turn:
            self._over = iteration
            if iteration == 1:
                self._over_at = time.monotonic()
            self._go_on()

    def release(self, iteration: int) -> None:
        """Nothing waits for it: results go to gradients, not to parameters."""

    def wait(self, tensors: Iterable[int], iteration: int, *, timeout: float | None = None) -> bool:
        """Wait until their results are in place; False after `timeout` seconds, PeerLost when they never will be."""
        due = list(tensors)
        with self._turn:
            end = float("inf") if timeout is None else time.monotonic() + timeout
            left = min(EVERY, end - time.monotonic())
            while not self._arrived.wait_for(lambda: self._failure is not None or self._done(due, iteration), left):
                left = min(EVERY, end - time.monotonic())
                if left <= 0:
                    return False
                self._look_for_silence()
            self._pulse.rest()
            if not self._done(due, iteration):
                self._raise_failure()
            return True

    def completed(self, tensor: int) -> int:
        """The last iteration whose result is in place."""
        return self._completed[tensor]

    def absent(self, tensor: int) -> bool:
        """Whether no rank had a gradient in the last completed iteration."""
        return not self._present[tensor]

    # --- what happened ---

    def spans(self, *, origin: float = 0.0) -> list[Span]:
        """Collectives since the last call, in seconds of time.monotonic() after `origin`."""
        with self._turn:
            taken, self._spans = self._spans, []
        return [replace(span, start=span.start - origin, end=span.end - origin) for span in taken]

    def counters(self) -> dict[str, int]:
        """Collectives, and the bytes that a ring would send for them, since the start."""
        return dict(self._count)

    def usage(self) -> Usage:
        """Time in which a collective was under way, and what a ring would send at each priority."""
        with self._turn:
            return Usage(busy=self._busy, sent=dict(self._sent))

    def check(self) -> None:
        """Raise PeerLost if the job has failed."""
        with self._turn:
            self._raise_failure()

    def fail(self, reason: str) -> None:
        """Tell everybody that this rank gives up, and stop."""
        self._pulse.tell(reason)
        with self._turn:
            self._failure = PeerLost(f"this rank gave up in step {self.iteration}: {reason}", step=self.iteration)
            self._wake_all()
        self.close()  # its connections, too: so the others' collectives end, which this rank will not take part in

    def close(self) -> None:
        """End the threads; calling it again does nothing. Collectives under way are waited for, but not for long."""
        with self._turn:
            self._closing = True
            self._wake_all()
        self._pulse.close()
        for thread in self._threads:
            thread.join(2.0)
        group, self._group = self._group, None
        if group is not None:
            if any(thread.is_alive() for thread in self._threads):
                never_end(group)
            with contextlib.suppress(ValueError, AssertionError):  # the user may have destroyed all groups before
                dist.destroy_process_group(group)

    # --- the issuing thread ---

    def _issue_all(self) -> None:
        iteration = 0
        while True:
            iteration += 1
            if not self._until(lambda i=iteration: self.iteration >= i):  # type: ignore[misc]
                return
            for call in self._calls:
                self._next = call
                if not self._until(lambda c=call: self._ready(c)):  # type: ignore[misc]
                    return
                self._issue(call, iteration)
            self._next = None
            if iteration == 1:
                if not self._until(lambda: self._over >= 1):
                    return
                self._learn_order()

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait for it; False when the session ends before."""
        with self._turn:
            self._to_issue.wait_for(lambda: self._closing or self._failure is not None or condition())
            return self._failure is None and condition()

    def _go_on(self) -> None:
        """Wake the issuing thread if what it waits for is there."""
        if self._next is None or self._ready(self._next):
            self._to_issue.notify()

    def _ready(self, call: Call) -> bool:
        if len(self._flying) >= DEPTH or (call.late and self._over < self.iteration):
            return False
        if call.kind == GATHER:
            return all(i in self._scattered for i in call.loads)
        return not self._lacking[call.loads[0]]

    def _issue(self, call: Call, iteration: int) -> None:
        start = time.monotonic()
        flats = [self._flats[i] for i in call.loads]
        whole = None
        if call.kind == GATHER:
            shards = flats[0].shard if len(flats) == 1 else torch.cat([flat.shard for flat in flats])
            whole = flats[0].whole if len(flats) == 1 else shards.new_empty(self.world * shards.numel())
            work: dist.Work | RingScatter = self._group._allgather_base(whole, shards)
        else:
            flats[0].pack(self._sources)
            work = self._start(call, flats[0])
        with self._turn:
            self._flying.append(_Flight(call, work, iteration, start, whole if len(flats) > 1 else None))
            self._to_land.notify()

    def _start(self, call: Call, flat: Flat) -> dist.Work | RingScatter:
        group: dist.ProcessGroup = self._group
        if call.kind == REDUCE:
            return group.allreduce([flat.whole])
        if flat.arrivals is not None:
            return RingScatter(group, flat.whole, flat.shard, flat.arrivals, tag=call.loads[0])
        return group._reduce_scatter_base(flat.shard, flat.whole, dist.ReduceScatterOptions())

    def _learn_order(self) -> None:
        """From the second iteration on, all ranks issue in the order that suits what rank 0 saw in the first."""
        with self._turn:
            begun = min(self._instants)
            carried = sum(self._sent.values()) * self.world / max(1, self.world - 1)
            speed = carried / self._busy if carried and self._busy else _UNKNOWN
            mine = [*(instant - begun for instant in self._instants), self._over_at - begun, speed]
        seen = torch.tensor(mine, dtype=torch.float64, device=self._device)
        self._group.broadcast([seen]).wait()
        *made, over, rate = seen.tolist()
        self._calls = timed(self._work, Seen(made=dict(zip(self._names, made, strict=True)), over=over, rate=rate))

    # --- the completing thread ---

    def _complete_all(self) -> None:
        while True:
            with self._turn:
                self._to_land.wait_for(lambda: self._flying or self._closing or self._failure is not None)
                if not self._flying or self._failure is not None:
                    return
                flight = self._flying[0]
            flight.work.wait()
            self._land(flight)

    def _land(self, flight: _Flight) -> None:
        call = flight.call
        if flight.whole is not None:
            rows, start = flight.whole.view(self.world, -1), 0
            for flat in (self._flats[i] for i in call.loads):
                width = flat.shard.numel()
                flat.whole.view(self.world, -1).copy_(rows[:, start : start + width])
                start += width
        seen: dict[str, bool] = {}
        if call.kind != SCATTER:
            for i in call.loads:
                load = self._work.loads[i]
                seen |= self._flats[i].unpack({n: self._target(n) for n in load.params})
        with self._turn:
            self._flying.popleft()
            self._note(flight)
            if call.kind == SCATTER:
                self._scattered.update(call.loads)
            for name in (name for i in call.loads for name in self._work.loads[i].params if call.kind != SCATTER):
                tensor = self._index[name]
                self._present[tensor] = seen[name]
                self._missing[tensor] -= 1
                if not self._missing[tensor]:
                    self._completed[tensor] = flight.iteration
            self._arrived.notify_all()
            self._go_on()

    def _target(self, name: str) -> int:
        return self._sources[name] or self._bound[self._index[name]]

    def _note(self, flight: _Flight) -> None:
        loads: list[Load] = [self._work.loads[i] for i in flight.call.loads]
        nbytes = sum(load.nbytes for load in loads)
        share = nbytes * (self.world - 1) // self.world * (2 if flight.call.kind == REDUCE else 1)
        self._count["collectives"] += 1
        self._count["bytes_sent"] += share
        self._count["bytes_received"] += share
        end = time.monotonic()
        self._busy += end - max(flight.start, self._busy_until)
        self._busy_until = end
        self._sent[flight.call.priority] += share
        if self._trace:
            for lane in _LANES[flight.call.kind]:
                self._spans.append(
                    Span(
                        node=f"worker {self.rank}",
                        lane=lane,
                        name=loads[0].parts[0][0],
                        start=flight.start,
                        end=end,
                        iteration=flight.iteration,
                        nbytes=nbytes,
                        priority=flight.call.priority,
                    )
                )

    # --- failures ---

    def _guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:
            why = self._pulse.cause(error, self.iteration)
            with self._turn:
                self._failure = self._failure or why
                self._wake_all()

    def _look_for_silence(self) -> None:
        try:
            self._pulse.check(self.iteration)
        except PeerLost as error:
            self._failure = error
            self._wake_all()

    def _wake_all(self) -> None:
        for waiting in (self._to_issue, self._to_land, self._arrived):
            waiting.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _done(self, tensors: Sequence[int], iteration: int) -> bool:
        return all(self._completed[t] >= iteration for t in tensors)
