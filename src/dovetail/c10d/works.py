"""What a collective hands back: a torch Work that fails with the name of the rank that was lost."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dovetail.engine.collectives import Pending
from dovetail.errors import DovetailError, TimedOut
from dovetail.units import format_bytes

LOOK = timedelta(seconds=0.25)  # between two looks whether a peer of a waiting collective is gone
_LOOK = LOOK.total_seconds()
# Large tensors travel in pieces of one size, which share the engine's channels: memory does not grow with the model.
PIECE = 32 << 20  # bytes
_ENDLESS = timedelta(0)  # torch's word for "no limit"


class Call:
    """One reduction: one buffer, handed to the engine in pieces, completed once, by whichever thread sees it first.

    Made in the middle of a backward pass, with nothing that is needed only by those who wait.
    """

    __slots__ = (
        "_error",
        "_finished",
        "_future",
        "_lock",
        "_pending",
        "_targets",
        "_waiter",
        "begun",
        "buffer",
        "divisor",
        "limit",
        "nbytes",
        "pieces",
    )

    def __init__(self, tensors: list[torch.Tensor], divisor: int, limit: float = math.inf) -> None:
        first = tensors[0].detach()  # keeps the memory, should the caller's tensor get another
        whole = len(tensors) == 1 and first.is_contiguous()
        self._targets = [] if whole else tensors  # what the result is copied back to
        self.buffer = first if whole else torch.cat([t.detach().reshape(-1) for t in tensors])
        self.divisor = divisor
        self.limit = limit  # seconds that it may take without any progress
        self.begun = time.monotonic()
        self.nbytes = size = self.buffer.nbytes
        # In bytes; one of nothing, too.
        self.pieces = [size] if size <= PIECE else [min(PIECE, size - start) for start in range(0, size, PIECE)]
        self._lock = threading.Lock()
        self._waiter: threading.Event | None = None  # for who waits before the engine has all pieces
        self._pending: list[Pending] = []
        self._error: Exception | None = None
        self._finished = False
        self._future: torch.futures.Future[Any] | None = None

    @property
    def given(self) -> int:
        """How many pieces the engine has."""
        return len(self._pending)

    def give(self, pending: Pending) -> None:
        """The engine has the next piece."""
        with self._lock:
            self._pending.append(pending)
            waiter = self._waiter if self._is_given else None
        if waiter is not None:
            waiter.set()

    @property
    def _is_given(self) -> bool:
        return len(self._pending) == len(self.pieces)

    @property
    def last(self) -> Pending | None:
        """The piece that completes the call, when the engine has it."""
        return self._pending[-1] if self._is_given else None

    def done(self) -> bool:
        """Whether `wait` would return at once, or raise."""
        try:
            return self._finished or (self._is_given and all(p.done() for p in self._pending))
        except DovetailError:
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Return when the result is in place; False after `timeout` seconds, PeerLost when it never will be."""
        end = None if timeout is None else time.monotonic() + timeout
        waiter = None
        with self._lock:
            if not self._is_given and not self._finished:
                waiter = self._waiter = self._waiter or threading.Event()
        if waiter is not None and not waiter.wait(timeout):
            return False
        try:
            for pending in () if self._finished else self._pending:
                if not pending.wait(None if end is None else max(0.0, end - time.monotonic())):
                    return False
        except DovetailError as error:
            self.finish(error)
        self.finish()
        if self._error is not None:
            raise self._error
        return True

    def finish(self, error: Exception | None = None) -> None:
        """The result is in the buffer, or `error` came instead; the first call counts."""
        with self._lock:
            if self._finished:
                return
            self._error = error
            if error is None:
                offset = 0
                for target in self._targets:
                    target.detach().copy_(self.buffer[offset : offset + target.numel()].view(target.shape))
                    offset += target.numel()
            self._finished = True
            future, waiter = self._future, self._waiter
        if waiter is not None:
            waiter.set()
        if future is not None:
            future.set_result(None)

    def future(self, value: Callable[[], Any]) -> torch.futures.Future[Any]:
        """Completes with `value()` or with the error."""

        def outcome(_: torch.futures.Future[Any]) -> Any:
            # A callback that raises is the only safe way: DDP dies of a future whose exception was set.
            if self._error is not None:
                raise self._error
            return value()

        base: torch.futures.Future[Any] = torch.futures.Future()
        with self._lock:
            finished = self._finished
            self._future = base
        if finished:
            base.set_result(None)
        return base.then(outcome)

    def __str__(self) -> str:
        return f"an all_reduce of {format_bytes(self.nbytes)} ({str(self.buffer.dtype).removeprefix('torch.')})"

    @property
    def error(self) -> Exception | None:
        return self._error


class ReduceWork(dist.Work):
    """A reduction on dovetail's engine."""

    def __init__(self, call: Call, tensors: list[torch.Tensor], look: Callable[[], object]) -> None:
        super().__init__()
        self._call = call
        self._look = look  # ends the job if a call is overdue
        self._tensors = tensors
        self._made: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = _ENDLESS) -> bool:
        """Return when the result is in place; PeerLost names the rank that is gone, TimedOut the limit that is over."""
        end = time.monotonic() + timeout.total_seconds() if timeout else math.inf
        # In slices: the thread that looks for overdue calls may itself be in a callback that waits for this one.
        while not self._call.wait(min(_LOOK, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                raise TimedOut(
                    f"{self._call} was not done after the {timeout.total_seconds():g} s that wait() was given; "
                    "the ranks still answer: wait longer, or see what the others do"
                )
            self._look()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        if self._made is None:
            self._made = self._call.future(lambda: self._tensors)
        return self._made

    def is_completed(self) -> bool:
        return self._call.done()

    def is_success(self) -> bool:
        return self._call.done() and self._call.error is None

    def exception(self) -> Any:
        return self._call.error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        self.wait()


class WatchedWork(dist.Work):
    """A collective of torch's own backend that ends when a peer is lost, even if that backend would wait on."""

    def __init__(self, inner: dist.Work, loss: Callable[[float], DovetailError | None]) -> None:
        super().__init__()
        self._inner = inner
        self._loss = loss  # who is gone, found out within so many seconds
        self._made: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = _ENDLESS) -> bool:
        """As the inner work's, but looks every now and then whether a peer is gone."""
        end = time.monotonic() + timeout.total_seconds() if timeout else None
        while True:
            # Looked at before: what ends while a slice of time runs out has not failed, and is asked once more.
            ended = self._inner.is_completed()
            try:
                return self._inner.wait(LOOK if end is None else min(LOOK, timeout))
            except RuntimeError as error:
                lost = self._loss(1.0 if ended else 0.0)
                if lost is not None:
                    raise lost from error
                late = end is not None and time.monotonic() >= end and not self._inner.is_completed()
                if ended or late:
                    raise

    def get_future(self) -> torch.futures.Future[Any]:
        if self._made is None:
            self._made = self._inner.get_future().then(self._value)
        return self._made

    def _value(self, future: torch.futures.Future[Any]) -> Any:
        try:
            return future.value()
        except RuntimeError as error:
            lost = self._loss(1.0)
            if lost is not None:
                raise lost from error
            raise

    def is_completed(self) -> bool:
        return self._inner.is_completed()

    def is_success(self) -> bool:
        return self._inner.is_success()

    def exception(self) -> Any:
        return self._inner.exception()

    def result(self) -> list[torch.Tensor]:
        return self._inner.result()

    def source_rank(self) -> int:
        return self._inner.source_rank()

    def _source_rank(self) -> int:
        return self._inner._source_rank()

    def synchronize(self) -> None:
        self.wait()


class WatchedTransfer(WatchedWork):
    """A send or receive of torch's own backend that ends when a peer is lost.

    Gloo closes all connections when waiting for a transfer times out, and forgets one that was waited for. So it is
    asked once, by a thread of its own, for as long as the first caller would wait; later callers wait for that answer.
    """

    def __init__(self, inner: dist.Work, loss: Callable[[float], DovetailError | None]) -> None:
        super().__init__(inner, loss)
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._ended = threading.Event()
        self._answer: bool | BaseException = True

    def wait(self, timeout: timedelta = _ENDLESS) -> bool:
        """As the inner work's, but looks every now and then whether a peer is gone."""
        end = time.monotonic() + timeout.total_seconds() if timeout else None
        with self._lock:
            if self._asking is None:
                self._asking = threading.Thread(
                    target=self._ask, args=(timeout,), name="dovetail transfer", daemon=True
                )
                self._asking.start()
        while not self._ended.wait(LOOK.total_seconds()):
            if (lost := self._loss(0.0)) is not None:
                self._give_up(self._asking)
                raise lost
        if isinstance(self._answer, RuntimeError):
            late = end is not None and time.monotonic() >= end
            lost = self._loss(0.0 if late else 1.0)
            if lost is not None:
                raise lost from self._answer
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def _ask(self, timeout: timedelta) -> None:
        try:
            self._answer = self._inner.wait(timeout)
        except BaseException as error:  # the caller's, whatever it is
            self._answer = error
        finally:
            self._ended.set()

    def _give_up(self, asking: threading.Thread) -> None:
        """Let Gloo close its connections: the thread must not outlive the interpreter, nor fill the caller's tensor.

        A receive from any source belongs to no connection and stays until the group's own timeout.
        """
        end = time.monotonic() + 1.0
        while asking.is_alive() and time.monotonic() < end:
            with contextlib.suppress(RuntimeError):  # one that ends meanwhile has answered us, not the thread: again
                self._inner.wait(timedelta(milliseconds=1))
            asking.join(0.05)
