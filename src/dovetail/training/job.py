"""One distributed optimizer: gradients leave in rounds, results are waited for where they are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import torch

from dovetail.errors import Misuse, PeerLost, in_a_line
from dovetail.training.guard import Guard
from dovetail.training.meter import Meter
from dovetail.training.order import FirstUse
from dovetail.training.parts import Engine, Measuring, Update, Voting
from dovetail.training.plain import plain_torch
from dovetail.training.record import Recorder
from dovetail.training.refusals import check_landed, check_shared, check_untouched, second_round, too_late
from dovetail.training.slots import Slot, dense_gradient, dense_like, drop, is_mean

_LOOKAHEAD = 4  # due parameters that may be missing before the search for further arrivals ends


class Job:
    """Rounds of gradients and the steps made of them; one thread, the one that called `distribute`.

    Each backward pass outside `no_sync` is one round on every rank. A step uses the last round.
    """

    def __init__(self, slots: Sequence[Slot], update: Update, engine: Engine, recorder: Recorder) -> None:
        self.slots = list(slots)
        self.update = update
        self.engine = engine
        self.recorder = recorder
        self.guard = Guard(self, slots)
        self.waited = 0.0  # seconds this thread has stood still for results
        self.meter = Meter()
        self.looks = 1  # iterations whose order of use is still recorded
        self.order = FirstUse(self.slots, self._own_time)
        self.replan: Callable[[int], Engine | None] | None = None  # asked before every round but the first
        self.barrier = False  # the plan wants every result in place before the next forward pass
        self.syncing = True  # False inside no_sync
        self.votes: Voting | None = None  # inside `join`
        self.vote = 0  # what this job says there before a round
        self.measuring = False  # gradients are clipped: the engine is asked for their squares
        self.patience: float | None = None  # seconds to wait for a result
        self.steps = 0
        self._round = 0  # counts from 1 in each engine
        self._collecting = False  # the round takes gradients
        self.gave_up = False  # a round was broken off, and the other ranks were told
        self._fresh = False  # a round has been since the last step
        self._measured: Measuring | None = None  # the engine, if it can tell the squares of this round
        self._factor: torch.Tensor | None = None  # what results of this round are multiplied by when they are here
        self._nesting = 0  # backward() calls on the stack
        self._due: dict[int, Slot] = {}  # in order of first use
        self._dtype = torch.get_default_dtype()  # of the last step; optimizers make state of it
        self._by_use = self.slots

    # Gradients out

    def on_gradient(self, slot: Slot) -> None:
        """A gradient has been accumulated: hand it to the engine."""
        if not self.syncing:
            slot.local = True
            return
        with torch._C.DisableTorchFunction():
            if self.update.remote and self._fresh and not self._collecting:
                raise second_round()
            check_landed(slot)
            if not self._collecting:
                self._open_round()
            if self.guard.recording:
                self.order.made(slot)
            self._send(slot, dense_gradient(slot))

    def _open_round(self, *, ask: bool = True) -> None:
        if ask and self.votes is not None:
            self.votes.cast(self.vote)
        self.settle_all()
        if self._round and self.replan is not None:
            self._swap(self.replan(self._round))
        self._round += 1
        self._collecting = self._fresh = True
        self.engine.begin(self._round, self.update.prepare())
        self._factor = self._measured = None
        if self.measuring and isinstance(self.engine, Measuring) and self.engine.measures:
            self._measured = self.engine
            self._measured.watch_squares(self._round)
        if not self._nesting and torch._C._current_graph_task_id() != -1:  # begun where the guard does not see it
            torch.autograd.Variable._execution_engine.queue_callback(self._end_round)

    def follow(self, names: Sequence[str]) -> None:
        """Parameters will be needed in this order."""
        place = {name: number for number, name in enumerate(names)}
        self._by_use = sorted(self.slots, key=lambda slot: place[slot.name])

    def _swap(self, engine: Engine | None) -> None:
        """Go on with another engine from here, if there is one."""
        if engine is not None:
            self.engine = engine
            self._round = 0
            for slot in self.slots:
                slot.sent = 0

    def _send(self, slot: Slot, grad: torch.Tensor | None) -> None:
        slot.absent = grad is None
        slot.local = slot.dropped = False
        slot.sent = self._round
        slot.flying = True
        pointer = 0
        if grad is not None:
            pointer = grad.data_ptr()
        elif not self.update.remote:
            grad = dense_like(slot.param)  # the others' mean comes in here
            self.engine.bind(slot.index, grad.data_ptr())
        slot.buffer = grad
        slot.stamp = grad._version if grad is not None else 0
        if grad is not None and not self.update.remote:
            slot.buffer_at = self.guard.watch(grad, slot)
        self.engine.submit(slot.index, self._round, pointer, True)

    def _end_round(self) -> None:
        """The backward pass is over: what has no gradient is declared absent, so that no rank waits for it."""
        if not self._collecting or self._nesting:
            return
        self.meter.ready(self.waited)
        self.recorder.gradients_ready()
        with torch._C.DisableTorchFunction():
            self._collecting = False
            try:
                self._send_rest()
            except Misuse as error:
                self._give_up(str(error))
                raise
            self.engine.backward_done(self._round)
            if not self.update.remote:
                self.engine.release(self._round)

    def _send_rest(self) -> None:
        for slot in self.slots:
            if slot.sent == self._round:
                check_untouched(slot)
            else:
                keep = slot.param.grad is not None and (slot.local or self.update.remote)
                self._send(slot, dense_gradient(slot) if keep else None)

    def answer(self) -> None:
        """A round in which this rank has nothing to say; the others' mean is not kept."""
        with torch._C.DisableTorchFunction():
            self._open_round(ask=False)
            self._end_round()
            for slot in self.slots:
                slot.dropped = True
            self.settle_all()
            self._fresh = False

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward pass as the guard sees it."""
        if self._nesting == 0:
            self._end_broken_round()
            self.settle_all()
            self.order.forward_ends()
            self.recorder.phase("backward")
        self._nesting += 1
        try:
            yield
        except BaseException as error:
            if self._collecting and self._nesting == 1:
                self._give_up(None if isinstance(error, PeerLost) else f"backward() raised {in_a_line(error)}")
            raise
        finally:
            self._nesting -= 1
        self._end_round()

    def _give_up(self, reason: str | None) -> None:
        """A round that cannot be ended here ends the job everywhere: the others would wait for the rest of it."""
        self._collecting = False
        self.gave_up = True
        if reason is not None:  # else the others know
            self.engine.fail(reason)

    def _in_backward(self) -> bool:
        return self._collecting and (self._nesting > 0 or torch._C._current_graph_task_id() != -1)

    def _end_broken_round(self) -> None:
        """Of a backward pass that the guard did not see, or of an error that was caught."""
        if self._collecting and not self._in_backward():
            self._give_up("a backward pass ended with an error")
        if self.gave_up:
            self.engine.check()

    # Results in

    def settle_all(self) -> None:
        """Every result is here and every update is applied."""
        self.settle(self.slots)

    def settle_due(self) -> None:
        """Every update of the last step is applied."""
        self.settle(list(self._due.values()))

    def settle(self, slots: Iterable[Slot]) -> None:
        """These slots' results are here and their updates applied; further arrivals are taken along."""
        # An aggregator's update is under way only from step() on; inside backward() a mean may need what comes later.
        local = not self.update.remote and not self._in_backward()
        wanted = [slot for slot in dict.fromkeys(slots) if slot.due or (slot.flying and local)]
        if not wanted:
            return
        with plain_torch(self._dtype):
            late = [slot.index for slot in wanted if not self._here(slot)]
            if late:
                self._apply(self._arrived())  # useful work while the network is busy
                self._wait(late)
            for slot in wanted:
                self._land(slot)
            self._apply([slot for slot in wanted if slot.due] + self._arrived(beside=wanted))
        stale = next((slot for slot in wanted if slot.steps != self.steps), None)
        if stale is not None:
            raise Misuse(f"{stale.name!r} was read at step {stale.steps} although step {self.steps} was called")

    def _wait(self, indices: Sequence[int]) -> None:
        self._end_broken_round()
        begun = time.monotonic()
        name = self.slots[indices[0]].name
        with self.recorder.waiting(name):
            there = self.engine.wait(indices, self._round, timeout=self.patience)
        self.waited += time.monotonic() - begun
        if not there:
            self._time_out(f"the mean of {name!r}")

    def _time_out(self, what: str) -> NoReturn:
        error = too_late(what, self.patience or 0.0)
        self._give_up(str(error))
        raise error

    def _own_time(self) -> float:
        """A clock that stands still while this thread waits for results."""
        return time.monotonic() - self.waited

    def _here(self, slot: Slot) -> bool:
        return not slot.flying or self.engine.completed(slot.index) >= self._round

    def _arrived(self, beside: Sequence[Slot] = ()) -> list[Slot]:
        """Due slots whose results are here, most urgent first; gives up after a few that are not."""
        taken = {slot.index for slot in beside}
        found: list[Slot] = []
        missing = 0
        for slot in self._due.values():
            if slot.index in taken:
                continue
            if self._here(slot):
                self._land(slot)
                found.append(slot)
            elif (missing := missing + 1) == _LOOKAHEAD:
                break
        return found

    def _land(self, slot: Slot) -> None:
        """The engine is done with the slot: an absent gradient that others had becomes ours, too."""
        if not slot.flying:
            return
        slot.flying = False
        mean, slot.buffer = slot.buffer, None
        if mean is None or self.update.remote:
            return
        if self._factor is not None:
            mean.mul_(self._factor)
        if slot.due and slot.grad is mean:
            slot.grad_at = slot.buffer_at  # watched until the update is applied
        else:
            self.guard.forget(slot.buffer_at, slot)
        if not slot.absent:
            slot.known = mean if slot.param.grad is mean else None  # what the user dropped is not kept alive
            return
        nobody = self.engine.absent(slot.index)
        if not nobody and not slot.dropped:
            slot.param.grad = slot.known = mean
        if slot.due:
            # Nobody had one: as torch does, step with what stood there, if anything.
            slot.grad = slot.stood if nobody else mean
            if slot.grad is not None:
                slot.grad_at = self.guard.watch(slot.grad, slot)
        slot.stood = None

    def _apply(self, slots: Sequence[Slot]) -> None:
        if not slots:
            return
        for slot in slots:
            slot.due = False
            slot.steps = self.steps
            del self._due[slot.index]
            self.guard.forget(slot.param_at, slot)
        with self.recorder.updating(len(slots)):
            self.update.apply(slots)
        for slot in slots:
            if slot.grad is not None:
                self.guard.forget(slot.grad_at, slot)
                slot.grad, slot.grad_at = None, 0

    def squares(self) -> float | None:
        """The sum of squares of the means that this rank completes; None unless the gradients are just these means."""
        whole = self._fresh and not self._collecting and self._factor is None
        if self._measured is None or not whole or not all(is_mean(slot, self._round) for slot in self.slots):
            return None
        with self.recorder.waiting("norm"):
            found = self._measured.squares(self._round, timeout=self.patience)
        if found is None:
            self._time_out("the norm of the gradients")
        return found

    def scale(self, factor: torch.Tensor) -> None:
        """Multiply the means of the last round, those that are on their way when they have come."""
        with torch._C.DisableTorchFunction():
            for slot in self.slots:
                if not slot.flying and slot.param.grad is not None:
                    slot.param.grad.mul_(factor)
            self._factor = factor

    # What the user's code does to gradients and parameters

    def read_grad(self, slot: Slot) -> None:
        """`p.grad` is about to be read: with the update at the worker it must be the mean by then."""
        if slot.flying and not self.update.remote and not self._in_backward():
            with plain_torch(self._dtype):
                if not self._here(slot):
                    self._wait([slot.index])
                self._land(slot)

    def drop_grad(self, slot: Slot, *, set_to_none: bool) -> None:
        """The user zeroes a gradient."""
        with torch._C.DisableTorchFunction():
            drop(slot, set_to_none=set_to_none)

    def touched(self, slot: Slot) -> None:
        """The user may change the parameter's memory without torch knowing."""
        self.update.touched(slot)

    def first_read(self, slot: Slot) -> None:
        """A torch function reads the parameter for the first time, or while the order is being recorded."""
        slot.seen = self.order.read(slot) or slot.seen

    # Steps

    def step(self) -> None:
        """Close the round and make its updates due; nothing is waited for."""
        with torch._C.DisableTorchFunction():
            self.close_round()
            due = self.update.schedule(self._by_use)
            self._dtype = torch.get_default_dtype()
            self._fresh = False
            self._look_again()
            self.steps += 1
            for slot in self.slots:
                slot.steps = self.steps
            for slot in due:
                slot.due, slot.steps = True, self.steps - 1
                self._due[slot.index] = slot
                slot.param_at = self.guard.watch(slot.param, slot)
                if slot.grad is not None and slot.grad is not slot.buffer:
                    slot.grad_at = self.guard.watch(slot.grad, slot)
            if self.update.remote:
                self.engine.release(self._round)
        self.meter.stepped(self.waited)
        self.recorder.step(self.steps)

    def close_round(self) -> None:
        """One round stands behind the coming step, an empty one if need be."""
        if torch._C._current_graph_task_id() != -1:
            raise Misuse("optimizer.step() was called inside backward(), where means are not known; call it afterwards")
        self._end_broken_round()
        self.settle_due()
        if not self._fresh:
            check_shared(self.slots)
            self._open_round()  # every rank answers each round, also one whose loss used no parameter
        self._end_round()

    def whole_step(self) -> None:
        """The counterpart of `step` when the optimizer has stepped everything at once."""
        self._fresh = False
        self._look_again()
        self.steps += 1
        for slot in self.slots:
            slot.steps = self.steps
        self.meter.stepped(self.waited)
        self.recorder.step(self.steps)

    def _look_again(self) -> None:
        self.looks -= 1
        self.guard.recording = self.looks > 0
        if self.guard.recording:
            self.order = FirstUse(self.slots, self._own_time)

    def forward_begins(self) -> None:
        """The model is called: parameters that no torch function was seen to read (compiled code) are needed now."""
        self.order.forward_begins()
        self.recorder.forward()
        self.settle([slot for slot in self._due.values() if self.barrier or not slot.seen])
