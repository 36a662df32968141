"""A process group's reductions on the engine: issued in the order of the calls, completed by one thread a group."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from dovetail.c10d.dtypes import DTYPES
from dovetail.c10d.works import Call
from dovetail.engine.collectives import IN_FLIGHT, Collectives, Pending
from dovetail.engine.session import Session
from dovetail.errors import DovetailError, Misuse

SLICE = 0.25  # seconds the thread waits for the oldest call before it looks whether the group is being closed
PATIENCE = 5.0  # seconds that closing waits for the thread

Kind = tuple[int, torch.dtype, int]


class Reducer:
    """Opens the engine in the background; calls made before it is open wait in line, their callers do not."""

    def __init__(self, open_session: Callable[[], Session], *, name: str) -> None:
        self._open_session = open_session
        self._turn = threading.Condition()
        self._queued: deque[Call] = deque()  # not with the engine yet
        self._flying: deque[Call] = deque()
        self._recent: dict[Kind, deque[Pending]] = {}  # what occupies the engine's channels of a kind
        self._session: Session | None = None
        self._calls: Collectives | None = None
        self._broken: DovetailError | None = None
        self._closing = False
        self._name = name
        with self._turn:  # the thread looks who leads
            self._leader = self._start(self._run)
        # A thread inside native code must not outlive the interpreter.
        atexit.register(self.close)

    def submit(self, call: Call) -> None:
        """Take the call; returns at once."""
        with self._turn:
            if self._broken is None and not self._closing and not self._queued and self._has_room(call):
                self._issue(call)
            else:
                self._queued.append(call)
            self._turn.notify()
            if threading.current_thread() is self._leader:
                # A callback that starts a call may also wait for it: somebody else must complete it.
                self._leader = self._start(self._lead)

    def loss(self, within: float = 0.0) -> DovetailError | None:
        """What ended the job, if something did; a connection that has just broken is told within a moment."""
        end = time.monotonic() + within
        while True:
            if self._session is not None:
                try:
                    self._session.check()
                except DovetailError as error:
                    return error
            if self._broken is not None or time.monotonic() >= end:
                return self._broken
            time.sleep(0.01)

    def close(self) -> None:
        """End the thread and part from the other ranks; calls under way fail."""
        with self._turn:
            self._closing = True
            self._turn.notify()
        atexit.unregister(self.close)
        if self._leader is not threading.current_thread():
            self._leader.join(PATIENCE)
        if self._session is not None:
            self._session.close()
        self._drop_all()  # only now does nobody write to the buffers any more

    def _start(self, task: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=task, name=self._name, daemon=True)
        thread.start()
        return thread

    def _has_room(self, call: Call) -> bool:
        """Whether the engine can take the call without waiting for an older one."""
        if self._calls is None:
            return False
        recent = self._recent.get(_kind(call))
        try:
            return recent is None or len(recent) < IN_FLIGHT or recent[0].done()
        except DovetailError:
            return True  # it will be told at once

    def _issue(self, call: Call) -> None:
        assert self._calls is not None
        data = call.buffer
        try:
            pending = self._calls.all_reduce(data.data_ptr(), data.nbytes, DTYPES[data.dtype], divisor=call.divisor)
        except DovetailError as error:
            call.finish(error)
            return
        self._recent.setdefault(_kind(call), deque(maxlen=IN_FLIGHT)).append(pending)
        self._flying.append(call)  # keeps the memory while the engine uses it
        call.give(pending)

    def _run(self) -> None:
        try:
            session = self._open_session()
        except DovetailError as error:
            self._broken = error
        except Exception as error:  # whatever it was, calls must not wait for it
            self._broken = DovetailError(f"the engine could not be opened: {type(error).__name__}: {error}")
        else:
            with self._turn:
                self._session, self._calls = session, Collectives(session)
            if self._closing:
                session.close()
        self._lead()

    def _lead(self) -> None:
        """Issue what waits in line and complete what is done, until another thread leads."""
        with self._turn:
            me = threading.current_thread()
        while self._leader is me and self._step():
            pass

    def _step(self) -> bool:
        with self._turn:
            while not (self._flying or self._queued or self._closing):
                self._turn.wait()
            if self._closing:
                return False
            while self._broken is None and self._queued and self._has_room(self._queued[0]):
                self._issue(self._queued.popleft())
            oldest = self._flying[0] if self._flying else None
        if oldest is None:
            if self._broken is not None:
                self._drop_all()
            return True
        # In the order of the calls: a callback that starts another collective does so in the same order everywhere.
        ended = True
        with contextlib.suppress(DovetailError):  # the call keeps its error
            ended = oldest.wait(SLICE)
        with self._turn:
            if ended and self._flying and self._flying[0] is oldest:
                self._flying.popleft()
        return True

    def _drop_all(self) -> None:
        reason = self._broken or Misuse("the process group was destroyed while an all_reduce was under way")
        with self._turn:
            dropped = (*self._queued, *self._flying)
            self._queued.clear()
            self._flying.clear()
        for call in dropped:
            call.finish(reason)


def _kind(call: Call) -> Kind:
    return call.buffer.nbytes, call.buffer.dtype, call.divisor
