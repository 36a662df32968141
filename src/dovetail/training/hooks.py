"""What hangs on the model: a hook on every trained parameter, and one on the model's own call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._compile import _disable_dynamo

from dovetail.training.buffers import Common, broadcast
from dovetail.training.job import Job
from dovetail.training.slots import Slot
from dovetail.training.uneven import BUFFERS


class BeforeForward:
    """Runs before the model's forward pass; a copy of the model gets a hook that does nothing."""

    def __init__(self, job: Job, common: Common | None) -> None:
        self._job = job
        self._common = common  # None where another hook of the model sees to the buffers
        self._due = True

    @_disable_dynamo  # unlike torch.compiler.disable it imports nothing yet
    def __call__(self, model: torch.nn.Module, args: Any) -> None:
        if self._common is not None and model.training and torch.is_grad_enabled():
            found = self._common.buffers(model) if self._due else []
            if found:
                begun = time.monotonic()
                broadcast(found, source=self._source())
                self._job.waited += time.monotonic() - begun
            self._due = self._job.syncing  # as DDP: after a pass under no_sync each rank goes on with its own
        self._job.forward_begins()

    def _source(self) -> int:
        """Whose buffers count: rank 0's, or those of a rank that still has data (see uneven.py)."""
        votes = self._job.votes
        if votes is None:
            return 0
        votes.cast(BUFFERS)
        return votes.authority

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # `{}.get(model, args)` gives back args: a hook without effect that needs no dovetail where a saved model loads.
        return getattr, ({}, "get")


@contextmanager
def attach(model: torch.nn.Module, job: Job, common: Common | None) -> Iterator[None]:
    """Hooks on for as long as the context lasts."""
    for slot in job.slots:
        slot.hook = _on_gradient(slot.param, partial(_sent, job, slot))
    handles: list[Any] = [slot.hook for slot in job.slots]
    handles.append(model.register_forward_pre_hook(BeforeForward(job, common)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_gradient(param: Any, hook: Callable[[torch.Tensor], None]) -> Any:
    return param.register_post_accumulate_grad_hook(hook)


def _sent(job: Job, slot: Slot, param: torch.Tensor) -> None:
    job.on_gradient(slot)
