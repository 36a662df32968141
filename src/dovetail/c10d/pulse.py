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

    def told(self, step: int) -> PeerLost | None:
        """Who gave up and why, if one did; a broken connection may be heard of before its words."""
        with contextlib.suppress(RuntimeError):  # the store is gone with the process that kept it
            words = self._last_words()
            return None if words is None else _lost(words, step)
        return None

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
            keys = [_key(rank) for rank in range(self._world)]
            known = [rank for rank, key in enumerate(keys) if self._store.check([key])]
            beats = [int(self._store.get(keys[rank])) for rank in known]
            now = self._clock()
            with self._lock:
                for rank, beat in zip(known, beats, strict=True):
                    if beat != self._beats[rank]:
                        self._beats[rank], self._heard[rank] = beat, now
        self._asked = 0.0


def _lost(words: str, step: int) -> PeerLost:
    teller, _, reason = words.partition(" ")
    return PeerLost(f"rank {teller} gave up in step {step}: {reason}", peer=int(teller), step=step)


def _key(rank: int) -> str:
    return f"beat/{rank}"
