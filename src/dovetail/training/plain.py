"""Results land and updates run wherever a parameter is read: contexts that are on there must not reach them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes


def plain_torch(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """As outside of all of torch's contexts: inference mode, autocast, modes, transforms, another default dtype."""
    if _is_plain(dtype):  # nearly always; it may be asked for every parameter of a forward pass
        return torch._C.DisableTorchFunction()
    return _out_of_all(dtype)


def _is_plain(dtype: torch.dtype) -> bool:
    return not (
        torch.is_inference_mode_enabled()
        or torch._C._is_any_autocast_enabled()
        or torch._C._len_torch_dispatch_stack()
        or _in_transform()
        or torch._C._get_tracing_state() is not None
        or torch.compiler._is_compiling_flag
        or torch.get_default_dtype() is not dtype
    )


def _in_transform() -> bool:
    """Inside torch.func's grad, vmap and others, which forbid changes of tensors they do not know."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextlib.contextmanager
def _out_of_all(dtype: torch.dtype) -> Iterator[None]:
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch._C._InferenceMode(False),
        _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext(),
        temporarily_clear_interpreter_stack() if _in_transform() else nullcontext(),
        _untraced(),
    ):
        theirs = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(theirs)


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """Unseen by torch.jit.trace, and as no export or compiler is told of: optimizers have other formulas for these."""
    tracing, compiling = torch._C._get_tracing_state(), torch.compiler._is_compiling_flag
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    torch.compiler._is_compiling_flag = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = compiling
        torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]
