"""What iterations cost this rank: a few clock reads each, added up only when somebody asks."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.engine.usage import Usage

RECENT = 100  # iterations whose gradients' instants are kept
WINDOW = 60  # marks; with one a second, the figures are those of the last minute
SOON, EVERY = 0.1, 1.0  # seconds between marks: at first, then twice as long each time, and at last


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Sums since the start, at one instant."""

    at: float
    iterations: int
    waited: float  # seconds in which the training thread stood still for results
    busy: float  # seconds in which a link was in use


class Meter:
    """Notes when gradients are ready and steps are made; `told` gets the typical work of an iteration now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.usage: Callable[[], Usage] = Usage
        self.told: Callable[[float], None] | None = None
        self.replans = 0
        self._clock = clock
        self._lock = threading.Lock()  # metrics are read from another thread
        self._iterations = 0
        self._waited = 0.0
        self._stepped: float | None = None  # own time of the last step: it stands still while results are waited for
        self._ready = 0.0
        self._works: deque[float] = deque(maxlen=RECENT)
        self._marks: deque[Mark] = deque(maxlen=WINDOW)
        self._next, self._pause = 0.0, SOON

    def ready(self, waited: float) -> None:
        """All gradients of this rank exist, and none has been waited for yet."""
        self._ready = self._clock() - waited

    def stepped(self, waited: float) -> None:
        """An iteration is over; `waited` is the sum of all waiting so far."""
        now = self._clock()
        with self._lock:
            if self._stepped is not None:
                self._works.append(max(0.0, self._ready - self._stepped))
            self._stepped = now - waited
            self._iterations += 1
            self._waited = waited
        if now >= self._next:
            self._next, self._pause = now + self._pause, min(EVERY, 2 * self._pause)
            mark = self._mark(self.usage())
            with self._lock:
                self._marks.append(mark)
            if self.told is not None:
                self.told(self.work())

    def replanned(self) -> None:
        """Another plan is in force: the figures begin anew."""
        with self._lock:
            self.replans += 1
            self._marks.clear()
            self._works.clear()
            self._stepped = None
            self._next, self._pause = 0.0, SOON

    def work(self) -> float:
        """Seconds from a step to the next iteration's last gradient, without waiting for results; the usual case."""
        with self._lock:
            return statistics.median(self._works) if self._works else 0.0

    def window(self) -> tuple[Mark, Mark, Usage]:
        """Where the figures begin, where they end, and what was used since the start."""
        usage = self.usage()
        last = self._mark(usage)
        with self._lock:
            first = self._marks[0] if self._marks else last
        return first, last, usage

    def _mark(self, usage: Usage) -> Mark:
        with self._lock:
            return Mark(at=self._clock(), iterations=self._iterations, waited=self._waited, busy=usage.busy)
