"""`torch.compile`d code: the guard does not see what it reads, so its parameters are waited for where it begins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

_ENTRY = "_callback_from_stance"  # called by every compiled function before it runs


class Entry:
    """Tells of every entry into compiled code, with the parameters it belongs to, until `remove`."""

    def __init__(self, begins: Callable[[Iterable[torch.Tensor] | None], None]) -> None:
        import torch._dynamo.eval_frame as frames

        self._frames: Any = frames
        self._plain: Any = getattr(frames, _ENTRY, None)
        self._begins = begins
        self.works = self._plain is not None  # another torch may have no such place
        if self.works:
            setattr(frames, _ENTRY, self._enter)

    def remove(self) -> None:
        """Leave torch as it was."""
        if self.works:
            setattr(self._frames, _ENTRY, self._plain)

    def _enter(self, callback: Any) -> Any:
        if callable(callback):
            self._begins(_parameters(sys._getframe(1).f_locals.get("fn")))
        return self._plain(callback)


def _parameters(function: Any) -> list[torch.Tensor] | None:
    """Those of the compiled module, layer or model; None for a function, which may read any."""
    owner = getattr(function, "__self__", None)
    return list(owner.parameters()) if isinstance(owner, torch.nn.Module) else None
