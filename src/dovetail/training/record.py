"""The training thread's own side of the timeline: computing, updating, waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from dovetail.timeline import AFTER, COMPUTE, DECIDE, UPDATE, WAIT, Span, Timeline


class Recorder:
    """Spans of one worker in seconds of the monotonic clock; does nothing unless `enabled`."""

    def __init__(self, node: str, *, enabled: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._enabled = enabled
        self._clock = clock
        self._spans: list[Span] = []
        self._boundaries: list[float] = []
        self._phase = ""
        self._since = 0.0
        self._iteration = 0

    def forward(self) -> None:
        """The model is called; the first call begins the first iteration."""
        if not self._enabled:
            return
        if not self._boundaries:
            self._boundaries.append(self._clock())
        self.phase("forward")

    def phase(self, name: str) -> None:
        """The compute stream goes on to something else; an empty name is a pause."""
        if not self._enabled:
            return
        now = self._clock()
        if self._phase and now > self._since:
            self._add(COMPUTE, self._phase, self._since, now)
        self._phase, self._since = name, now

    def gradients_ready(self) -> None:
        """The backward pass is over; what is computed from here to the step does not make this rank late."""
        self.phase(AFTER)

    def waiting(self, name: str) -> AbstractContextManager[None]:
        """Around a wait for a parameter."""
        return self._span(WAIT, name) if self._enabled else nullcontext()

    def updating(self, count: int) -> AbstractContextManager[None]:
        """Around the optimizer's work on some parameters."""
        return self._span(UPDATE, f"{count} parameters") if self._enabled else nullcontext()

    def deciding(self, reason: str) -> AbstractContextManager[None]:
        """Around a change of the schedule."""
        return self._span(DECIDE, reason) if self._enabled else nullcontext()

    def step(self, iteration: int) -> None:
        """An iteration ends when `step()` returns, and the next begins."""
        if self._enabled:
            self.phase("")
            self._iteration = iteration
            if self._boundaries:
                self._boundaries.append(self._clock())

    def timeline(self, policy: str, engine_spans: Sequence[Span] = ()) -> Timeline:
        """All so far, in seconds since the first iteration began; `notes` gives that instant on the own clock."""
        zero = self._boundaries[0] if self._boundaries else 0.0
        return Timeline(
            source="engine",
            policy=policy,
            spans=tuple(_shift(s, -zero) for s in (*self._spans, *engine_spans) if s.end >= zero),
            boundaries={self._node: tuple(b - zero for b in self._boundaries)} if self._boundaries else {},
            notes=(f"zero {zero!r}",),
        )

    @contextmanager
    def _span(self, lane: str, name: str) -> Iterator[None]:
        phase = self._phase
        self.phase("")
        start = self._clock()
        try:
            yield
        finally:
            self._add(lane, name, start, self._clock())
            self._phase, self._since = phase, self._clock()

    def _add(self, lane: str, name: str, start: float, end: float) -> None:
        self._spans.append(Span(node=self._node, lane=lane, name=name, start=start, end=end, iteration=self._iteration))


def _shift(span: Span, seconds: float) -> Span:
    return replace(span, start=span.start + seconds, end=span.end + seconds)


def merge(timelines: Sequence[Timeline], zeros: Sequence[float]) -> Timeline:
    """One timeline of all ranks; `zeros` are their zero instants on one common clock."""
    first = zeros[0]
    spans = [_shift(s, zero - first) for line, zero in zip(timelines, zeros, strict=True) for s in line.spans]
    boundaries = {
        node: tuple(b + zero - first for b in instants)
        for line, zero in zip(timelines, zeros, strict=True)
        for node, instants in line.boundaries.items()
    }
    head = timelines[0]
    return Timeline(
        source=head.source,
        policy=head.policy,
        spans=tuple(sorted(spans, key=lambda s: s.start)),
        boundaries=boundaries,
        notes=(),
    )
