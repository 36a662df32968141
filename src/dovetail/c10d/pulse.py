"""Who has fallen silent: on a process group, a rank that hangs or whose host is gone is noticed through the store.

Gloo and NCCL report a broken connection at once, but wait for silence until the group's timeout, often half an hour.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from dovetail.errors import PeerLost, in_a_line

EVERY = 1.0  # seconds between beats
SILENT = 20.0  # seconds without one; generous, as code that holds Python's lock for long keeps a rank from beating
_LAST_WORDS = "gave up"  # the key under which a rank says why it ends the job
_MISSING = "missing"  # the key under which the first to notice says who has gone
_NO_STORE = "the store has gone with the process that keeps it (rank 0, or torchrun's)"


class Pulse:
    """Beats from a thread of its own, so that a rank which computes for long is not taken for one that hangs."""

    def __init__(self, store: Any, *, rank: int, world: int, clock: Callable[[], float] = time.monotonic) -> None:
        # A connection of its own: the other one may be inside a call that waits.
        self._store, self._rank, self._world, self._clock = store.clone(), rank, world, clock
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}  # how often each rank had beaten when last asked
        self._heard = [0.0] * world  # when each rank's count was last seen to change
        self._asked = 0.0  # when the store was asked what it has not answered yet; 0 = nothing
        self._gone = 0.0  # when it was found gone; 0 = it is there
        self._told: str | None = None  # what a rank said when it gave up
        self._missing: str | None = None  # the rank that another one missed
        self._looking = False  # somebody waits, so that other ranks' beats are of interest
        self._thread = threading.Thread(target=self._run, name="dovetail c10d pulse", daemon=True)
        self._thread.start()

    def check(self, step: int) -> None:
        """Raise PeerLost if a rank is silent; to be called again and again while something is waited for."""
        now = self._clock()
        with self._lock:
            if not self._looking:
                self._looking, self._heard = True, [now] * self._world
                return
            self._raise_news(step)
            if self._gone and now - self._gone > 3 * EVERY:  # what is on its way may still come
                raise PeerLost(f"{_NO_STORE} in step {step}", step=step)
            if self._asked and now - self._asked > SILENT:
                raise PeerLost(
                    f"the store that the ranks share has not answered for {SILENT:.0f} s in step {step}; "
                    "the process that keeps it (rank 0, or torchrun's) hangs or its host is gone",
                    step=step,
                )
            if self._gone or (self._asked and now - self._asked > EVERY):
                return  # through a store that does not answer nobody is heard, whoever it is that hangs
            silent = [rank for rank, heard in enumerate(self._heard) if now - heard > SILENT and rank != self._rank]
        if silent:
            self._say(_MISSING, str(silent[0]))
            raise _missed(silent[0], step)

    def tell(self, reason: str) -> None:
        """Let the other ranks know that this one gives up, as long as they can be told."""
        self._say(_LAST_WORDS, f"{self._rank} {reason}")

    def cause(self, error: Exception, step: int) -> PeerLost:
        """Why a collective failed: who gave up, or who has gone; a connection breaks before either is known."""
        if isinstance(error, PeerLost):
            return error
        said = f"a collective of the process group failed in step {step}"
        try:
            self._read_news()
            self._raise_news(step)
            if isinstance(error, RuntimeError):  # as torch's collectives raise; anything else is of our own making
                self._find_missing(step)
            if not self._end.is_set():
                self.tell(in_a_line(error))  # nobody has gone, and we would be waited for as long as we live
            found = PeerLost(f"{said}: {in_a_line(error)}", step=step)
        except PeerLost as lost:
            found = lost
        except RuntimeError:
            found = PeerLost(f"{said}, and {_NO_STORE}: {in_a_line(error)}", step=step)
        found.__cause__ = error
        return found

    def rest(self) -> None:
        """Nothing is waited for any more."""
        self._looking = False

    def close(self) -> None:
        """No more beats; calling it again does nothing."""
        self._end.set()
        self._thread.join(EVERY)

    def _run(self) -> None:
        count, last = 0, self._clock()
        while not self._end.wait(EVERY):
            count += 1
            try:
                self._ask(count)
            except RuntimeError:
                self._gone = self._clock()
                return
            now = self._clock()
            if now - last > 3 * EVERY:
                with self._lock:  # we slept ourselves, and may not have heard what was said meanwhile
                    self._heard = [now] * self._world
            last = now

    def _ask(self, count: int) -> None:
        self._asked = self._clock()
        self._store.set(_key(self._rank), str(count))
        self._read_news()
        if self._looking:
            counts = self._read_counts()
            now = self._clock()
            with self._lock:
                for rank, beaten in counts.items():
                    if beaten != self._counts.get(rank):
                        self._heard[rank] = now
                self._counts = counts
        self._asked = 0.0

    # What ranks say

    def _say(self, key: str, value: str) -> None:
        """The first to say something under a key is heard. Who says it may leave then: not before others have read."""

        def say() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone with the process that kept it
                self._store.compare_set(key, "", value)
                self._end.wait(EVERY)

        saying = threading.Thread(target=say, name="dovetail c10d last words", daemon=True)
        saying.start()
        saying.join(2 * EVERY)  # a store that hangs must not keep an error from its user

    def _read_news(self) -> None:
        self._told, self._missing = (
            self._store.get(key).decode() if self._store.check([key]) else None for key in (_LAST_WORDS, _MISSING)
        )

    def _raise_news(self, step: int) -> None:
        if self._told is not None:
            teller, _, reason = self._told.partition(" ")
            raise PeerLost(f"rank {teller} gave up in step {step}: {reason}", peer=int(teller), step=step)
        if self._missing == str(self._rank):
            raise PeerLost(f"the other ranks missed this one's signs of life and gave up in step {step}", step=step)
        if self._missing is not None:
            raise _missed(int(self._missing), step)

    # Whether they beat

    def _read_counts(self) -> dict[int, int]:
        known = [rank for rank in range(self._world) if self._store.check([_key(rank)])]
        return {rank: int(self._store.get(_key(rank))) for rank in known}

    def _find_missing(self, step: int) -> None:
        """Raise PeerLost if one rank, and only one, beats no more."""
        before, end = self._read_counts(), self._clock() + 2.5 * EVERY
        while self._clock() < end and not self._end.wait(EVERY / 4):
            self._read_news()
            self._raise_news(step)
        after = self._read_counts()
        still = [rank for rank in range(self._world) if rank != self._rank and before.get(rank) == after.get(rank)]
        if len(still) == 1 and not self._end.is_set():
            self._say(_MISSING, str(still[0]))
            raise _missed(still[0], step)


def _missed(rank: int, step: int) -> PeerLost:
    said = f"rank {rank} gives no sign of life any more in step {step}"
    return PeerLost(f"{said}; its process has ended or hangs, or its host is gone", peer=rank, step=step)


def _key(rank: int) -> str:
    return f"beat/{rank}"
