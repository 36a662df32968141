"""Who has fallen silent: on a process group, a rank that hangs or whose host is gone is noticed through the store.

Gloo and NCCL report a broken connection at once, but wait for silence until the group's timeout, often half an hour.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from dovetail.errors import PeerLost

EVERY = 1.0  # seconds between beats
SILENT = 20.0  # seconds without one; generous, as code that holds Python's lock for long keeps a rank from beating
_LAST_WORDS = "gave up"  # the key under which a rank says why it ends the job
_MISSING = "missing"  # the key under which the first to notice says who has gone


class Pulse:
    """Beats from a thread of its own, so that a rank which computes for long is not taken for one that hangs."""

    def __init__(self, store: Any, *, rank: int, world: int, clock: Callable[[], float] = time.monotonic) -> None:
        # A connection of its own: the other one may be inside a call that waits.
        self._store, self._rank, self._world, self._clock = store.clone(), rank, world, clock
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._beats = [0] * world
        self._heard = [0.0] * world  # when each rank's beat was last seen to change
        self._asked = 0.0  # when the store was asked what it has not answered yet; 0 = nothing
        self._told: str | None = None  # what a rank said when it gave up
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
            if self._told is not None:
                raise _lost(self._told, step)
            if self._asked and now - self._asked > SILENT:
                raise PeerLost(
                    f"the store that the ranks share has not answered for {SILENT:.0f} s in step {step}; "
                    "the process that keeps it (rank 0, or torchrun's) hangs or its host is gone",
                    step=step,
                )
            if self._asked and now - self._asked > EVERY:
                return  # through a store that does not answer nobody is heard, whoever it is that hangs
            for rank, heard in enumerate(self._heard):
                if rank != self._rank and now - heard > SILENT:
                    raise PeerLost(
                        f"rank {rank} has given no sign of life for {SILENT:.0f} s in step {step}; "
                        "its process hangs or its host is gone",
                        peer=rank,
                        step=step,
                    )

    def tell(self, reason: str) -> None:
        """Let the other ranks know that this one gives up, as long as they can be told."""
        with contextlib.suppress(RuntimeError):
            self._store.compare_set(_LAST_WORDS, "", f"{self._rank} {reason}")  # the first one's count

    def cause(self, error: Exception, step: int) -> PeerLost:
        """Why a collective failed: who gave up, or who has gone; a connection breaks before either is known."""
        if isinstance(error, PeerLost):
            return error
        missing, who = -1, ""
        try:
            words = self._last_words()
            if words is not None:
                return _lost(words, step)
            missing = self._find_missing()
            if missing >= 0:
                who = f" as rank {missing} has gone"
        except RuntimeError:
            who = " as the store has gone with the process that keeps it (rank 0, or torchrun's)"
        said = f"a collective of the process group failed in step {step}{who}: {error}"
        return PeerLost(said, peer=missing, step=step)

    def _find_missing(self) -> int:
        """The one rank that beats no more, or -1. The first to know tells the others, since it may leave then."""
        before, end = self._counts(), self._clock() + 2.5 * EVERY
        while self._clock() < end and not self._end.wait(EVERY / 4):
            if self._store.check([_MISSING]):
                return int(self._store.get(_MISSING))
        after = self._counts()
        still = [rank for rank in range(self._world) if rank != self._rank and before.get(rank) == after.get(rank)]
        if len(still) != 1 or self._end.is_set():
            return -1
        return int(self._store.compare_set(_MISSING, "", str(still[0])))

    def _counts(self) -> dict[int, int]:
        """How often each rank has beaten that ever has."""
        known = [rank for rank in range(self._world) if self._store.check([_key(rank)])]
        return {rank: int(self._store.get(_key(rank))) for rank in known}

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
                return  # the store is gone with the process that kept it; the group's connections tell of that
            now = self._clock()
            if now - last > 3 * EVERY:
                with self._lock:  # we slept ourselves, and may not have heard what was said meanwhile
                    self._heard = [now] * self._world
            last = now

    def _last_words(self) -> str | None:
        return self._store.get(_LAST_WORDS).decode() if self._store.check([_LAST_WORDS]) else None

    def _ask(self, count: int) -> None:
        self._asked = self._clock()
        self._store.set(_key(self._rank), str(count))
        if self._looking:
            self._told = self._last_words()
            counts = self._counts()
            now = self._clock()
            with self._lock:
                for rank, beat in counts.items():
                    if beat != self._beats[rank]:
                        self._beats[rank], self._heard[rank] = beat, now
        self._asked = 0.0


def _lost(words: str, step: int) -> PeerLost:
    teller, _, reason = words.partition(" ")
    return PeerLost(f"rank {teller} gave up in step {step}: {reason}", peer=int(teller), step=step)


def _key(rank: int) -> str:
    return f"beat/{rank}"
