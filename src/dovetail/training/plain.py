"""Results land and updates run wherever a parameter is read: contexts that are on there must not reach them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def plain_torch(dtype: torch.dtype) -> Iterator[None]:
    """As outside of all of torch's contexts: inference mode, autocast, modes, transforms, another default dtype."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch._C._InferenceMode(False),
        _without_modes(),
        _without_transforms(),
        _default(dtype),
    ):
        yield


def _without_modes() -> Any:
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else contextlib.nullcontext()


def _without_transforms() -> Any:
    """Outside of torch.func's grad, vmap and others, which forbid changes of tensors they do not know."""
    inside = torch._C._functorch.peek_interpreter_stack() is not None
    return temporarily_clear_interpreter_stack() if inside else contextlib.nullcontext()


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    theirs = torch.get_default_dtype()
    if theirs is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(theirs)
