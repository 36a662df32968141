"""A process group's reductions on the engine: issued in the order of the calls, completed by one thread a group."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from dovetail.c10d.dtypes import DTYPES
from dovetail.c10d.works import PIECE, Call
from dovetail.engine.collectives import Collectives, Pending
from dovetail.engine.session import Session
from dovetail.errors import DovetailError, Misuse, TimedOut

SLICE = 60.0  # seconds the thread waits for news at most, if there is none; closing wakes it
SHARE = 8  # it looks so many times within a call's limit whether one is overdue
SHORTEST = 0.05  # seconds between two looks
PATIENCE = 2.0  # seconds that closing waits for the thread, which may still be meeting ranks that have gone
_DESTROYED = "the process group was destroyed while an all_reduce was under way"
_ENDED = "an all_reduce was asked of a process group that had been destroyed; call init_process_group again before it"


class Reducer:
    """Opens the engine in the background; calls made before it is open wait in line, their callers do not."""

    def __init__(self, open_session: Callable[[], Session], *, name: str) -> None:
        self._open_session = open_session
        self._lock = threading.RLock()
        self._turn = threading.Condition(self._lock)
        self._queued: deque[Call] = deque()  # not with the engine yet, or not whole
        self._flying: deque[tuple[Call, Pending]] = deque()  # pieces, in the order of issue
        self._session: Session | None = None
        self._calls: Collectives | None = None
        self._broken: DovetailError | None = None
        self._closing = False
        self._slice = SLICE  # between two looks: a share of the shortest limit a call has had
        self._progress = 0.0  # when the last piece was done
        self._silent = False  # the engine has no more news: the thread that leads waits for calls alone
        self._calling = 0  # threads that may be in a callback of the caller's
        self._name = name
        with self._turn:  # the thread looks who leads
            self._leader = self._start(self._run)
        # A thread inside native code must not outlive the interpreter.
        atexit.register(self.close)

    def submit(self, call: Call) -> None:
        """Take the call; returns at once."""
        failed: list[tuple[Call, DovetailError]] = []
        with self._lock:
            broken = self._broken or (Misuse(_ENDED) if self._closing else None)
            if broken is not None:
                failed = [(call, broken)]
            else:
                self._queued.append(call)
                if call.limit < self._slice * SHARE and self._slice > SHORTEST:
                    self._look_more_often(call.limit)
                if self._calling or self._queued[0] is call:
                    failed = self._issue_queued()
                if self._session is not None and call.nbytes == 0:  # of nothing there is no news
                    self._session.nudge()
                if self._silent:
                    self._turn.notify_all()
                if self._calling and threading.current_thread() is self._leader:
                    # A callback that starts a call may also wait for it: somebody else must complete it.
                    self._leader = self._start(self._lead)
        self._fail(failed)

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

    def look(self) -> float:
        """Give the group up if a call is overdue; seconds until the next look is due.

        The whole group: the engine may write to the memory of what was asked for until the job has ended.
        """
        now, due = time.monotonic(), self._slice
        with self._lock:
            flying, progress = tuple(self._flying), self._progress
        with contextlib.suppress(DovetailError):  # the job is over: whoever waits hears of it there
            for call, pending in flying:
                left = max(call.begun, progress) + call.limit - now
                if left > 0:
                    due = min(due, left)
                elif not pending.done():
                    self._give_up(call)
                    break
        return due

    def _give_up(self, call: Call) -> None:
        assert self._session is not None
        said = f"{call} was not done after {call.limit:g} s"
        error = TimedOut(
            f"{said}, its timeout, though all ranks still answer; see what keeps a rank from calling it, or give "
            "init_process_group a longer timeout"
        )
        self._session.fail(f"gave up because {said}", error=error)

    def _look_more_often(self, limit: float) -> None:
        self._slice = max(SHORTEST, limit / SHARE)
        if self._session is not None:
            self._session.nudge()

    def close(self) -> None:
        """End the thread and part from the other ranks; calls under way fail. Calling it again does nothing."""
        with self._turn:
            if self._closing:
                return
            self._closing = True
            self._turn.notify_all()
            session = self._session
        if session is not None:
            session.nudge()
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

    def _issue_queued(self) -> list[tuple[Call, DovetailError]]:
        """Give the engine what it can take without waiting; strictly in order, as on every other rank.

        Returns what it refused. That is for `_fail`, without the lock: a callback may start a call and wait for it.
        """
        failed: list[tuple[Call, DovetailError]] = []
        while self._queued and self._calls is not None and not self._closing:
            call = self._queued[0]
            try:
                while self._issue_piece(call, self._calls):
                    if call.given == len(call.pieces):
                        break
                else:
                    break
            except DovetailError as error:
                failed.append((call, error))
            except Exception as error:  # whatever it was, the thread that completes calls must go on
                failed.append((call, DovetailError(f"the engine did not take a call: {type(error).__name__}: {error}")))
            self._queued.popleft()
        return failed

    def _fail(self, failed: list[tuple[Call, DovetailError]]) -> None:
        for call, error in failed:
            self._finish(call, error)

    def _finish(self, call: Call, error: DovetailError | None) -> None:
        """Complete the call; what its callbacks start meanwhile does not wait for the thread that leads."""
        with self._lock:
            self._calling += 1
        try:
            call.finish(error)
        finally:
            with self._lock:
                self._calling -= 1

    def _issue_piece(self, call: Call, calls: Collectives) -> bool:
        """Whether there was room for the next piece."""
        number, data = call.given, call.buffer
        ptr = data.data_ptr() + number * PIECE
        pending = calls.try_all_reduce(ptr, call.pieces[number], DTYPES[data.dtype], divisor=call.divisor)
        if pending is None:
            return False
        self._flying.append((call, pending))  # keeps the memory while the engine uses it
        call.give(pending)
        return True

    def _run(self) -> None:
        broken: DovetailError | None = None
        try:
            session = self._open_session()
        except DovetailError as error:
            broken = error
        except Exception as error:  # whatever it was, calls must not wait for it
            broken = DovetailError(f"the engine could not be opened: {type(error).__name__}: {error}")
        with self._turn:
            self._broken = broken
            if broken is None:
                self._session, self._calls, self._progress = session, Collectives(session), time.monotonic()
        if broken is not None:
            self._drop_all()
        else:
            if self._closing:
                session.close()
            self._lead()

    def _lead(self) -> None:
        """Issue what waits in line and complete what is done, until another thread leads."""
        me = threading.current_thread()
        session, seen, alive, pause = self._session, 0, True, self._slice
        assert session is not None
        while True:
            with self._turn:
                while not (alive or self._flying or self._queued or self._closing or self._leader is not me):
                    self._turn.wait()
                if self._closing or self._leader is not me:
                    return
                failed = self._issue_queued()
                oldest = self._flying[0] if self._flying else None
            if failed:
                self._fail(failed)
                continue
            if oldest is not None and self._complete(*oldest):
                continue
            # Not for the oldest call alone: whoever submits would have to wake this thread first.
            try:
                before, seen = seen, session.news(seen, timeout=pause)
                pause = self.look() if seen == before else self._slice
            except DovetailError:
                alive = False
                with self._lock:
                    self._silent = True

    def _complete(self, call: Call, pending: Pending) -> bool:
        """Whether it was there, and is done with."""
        # In the order of the calls: a callback that starts another collective does so in the same order everywhere.
        try:
            ended = pending.done()
            error = None
        except DovetailError as lost:
            ended, error = True, lost
        if error is not None or (ended and pending is call.last):
            self._finish(call, error)
        with self._turn:
            if ended:
                self._progress = time.monotonic()
            if ended and self._flying and self._flying[0] == (call, pending):
                self._flying.popleft()
        return ended

    def _drop_all(self) -> None:
        reason = self._broken or Misuse(_DESTROYED)
        with self._turn:
            dropped = (*self._queued, *(call for call, _ in self._flying))
            self._queued.clear()
            self._flying.clear()
        for call in dropped:
            call.finish(reason)
