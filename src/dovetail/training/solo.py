"""A session with nobody else in it: a world of one trains through the same code."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.rule import Hyper
from dovetail.engine.usage import Usage
from dovetail.timeline import Span


class Solo:
    """The engine's interface where the mean of one gradient is that gradient."""

    def __init__(self, count: int) -> None:
        self._absent = [False] * count
        self._iteration = 0

    def bind(self, index: int, pointer: int) -> None:
        """Nothing is written back."""

    def begin(self, iteration: int, hypers: Sequence[Hyper]) -> None:
        self._iteration = iteration

    def submit(self, index: int, iteration: int, pointer: int, more: bool) -> None:
        """The gradient is its own mean."""
        self._absent[index] = pointer == 0

    def backward_done(self, iteration: int) -> None:
        """Nothing waits for it."""

    def release(self, iteration: int) -> None:
        """Nothing is written back."""

    def wait(self, indices: Sequence[int], iteration: int, *, timeout: float | None) -> bool:
        """Everything is here."""
        return True

    def completed(self, index: int) -> int:
        return self._iteration

    def absent(self, index: int) -> bool:
        """Whether the only rank had no gradient."""
        return self._absent[index]

    def usage(self) -> Usage:
        return Usage()

    def spans(self) -> Sequence[Span]:
        return ()

    def check(self) -> None:
        """Nobody can be lost."""

    def fail(self, reason: str) -> None:
        """Nobody else waits."""

    def close(self) -> None:
        """Nothing is open."""
