"""`optimizer.state` right after `step()`: reading or replacing it settles the step first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

_NAME = "state"


class _StateReads:
    """Stands for the attribute on the class; the optimizer's own dictionary stays what it is, and so do its pickles."""

    def __init__(self, home: type[Optimizer]) -> None:
        self.home = home
        self.settles: dict[int, tuple[Callable[[], None], int]] = {}  # with its thread; by the optimizer's id

    def __get__(self, optimizer: Optimizer | None, owner: type[Optimizer]) -> Any:
        if optimizer is None:
            return self
        self._settle(optimizer)
        try:
            return optimizer.__dict__[_NAME]
        except KeyError:
            raise AttributeError(_NAME) from None

    def __set__(self, optimizer: Optimizer, value: Any) -> None:
        self._settle(optimizer)
        optimizer.__dict__[_NAME] = value

    def _settle(self, optimizer: Optimizer) -> None:
        settle, thread = self.settles.get(id(optimizer), (None, 0))
        # As with the guard's reads: not from within an update that is being applied, nor from other threads.
        if settle is not None and torch._C._is_torch_function_mode_enabled() and thread == threading.get_ident():
            settle()


def watch_state(optimizer: Optimizer, settle: Callable[[], None]) -> Callable[[], None]:
    """Call `settle` before every access to `optimizer.state`; returns what ends that."""
    kind: Any = type(optimizer)
    reads = getattr(kind, _NAME, None)  # a class above may have it already
    if reads is None:
        reads = _StateReads(kind)
        setattr(kind, _NAME, reads)
    if not isinstance(reads, _StateReads):
        return lambda: None  # the class has made something of its own of it
    reads.settles[id(optimizer)] = (settle, threading.get_ident())

    def end() -> None:
        del reads.settles[id(optimizer)]
        if not reads.settles:
            delattr(reads.home, _NAME)

    return end
