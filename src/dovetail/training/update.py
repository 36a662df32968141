"""The update at the worker: the user's own optimizer steps the parameters whose means have arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.optim import Optimizer

from dovetail.engine.rule import Hyper
from dovetail.errors import Misuse
from dovetail.training.slots import Slot

# Their formulas treat every parameter by itself, so that stepping some now and others later changes nothing.
_BY_PARAMETER = {
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adadelta", "Adamax", "ASGD", "Rprop")
}

# A fused optimizer unscales gradients and skips the step itself, by what GradScaler leaves here while step() runs.
_SCALING = ("grad_scale", "found_inf")


def plain_step(optimizer: Optimizer) -> Callable[..., Any]:
    """The class's own step without the hooks around it, which fire once per user's step."""
    step: Any = type(optimizer).step
    return cast("Callable[..., Any]", step.__wrapped__ if getattr(step, "hooked", False) else step)


class WorkerUpdate:
    """Steps groups of arrived parameters with the hyperparameters of the moment `step()` was called."""

    remote = False
    rule = None

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._step = plain_step(optimizer)
        self._snapshot: list[dict[str, Any]] = []
        self._scaling: dict[str, torch.Tensor | None] = {}
        self.by_parameter = type(optimizer) in _BY_PARAMETER

    def prepare(self) -> list[Hyper]:
        """Nothing is computed elsewhere."""
        return []

    def touched(self, slot: Slot) -> None:
        """The only copy of the values is the user's own."""

    def schedule(self, slots: Sequence[Slot]) -> list[Slot]:
        """Slots that this step updates; the hyperparameters are those of now, whatever a scheduler does next."""
        self._snapshot = [_frozen(group) for group in self._optimizer.param_groups]
        here = self._optimizer.__dict__
        self._scaling = {name: _kept(here[name]) for name in _SCALING if name in here}
        return [slot for slot in slots if self._has_gradient(slot)]

    def _has_gradient(self, slot: Slot) -> bool:
        grad = slot.param.grad
        if slot.absent and grad is not None and grad is not slot.known:
            raise Misuse(
                f"the gradient of {slot.name!r} was set by hand and may differ from rank to rank; "
                "let backward() make it, or change it after backward()"
            )
        if slot.absent and slot.flying:
            slot.stood = grad
            return True  # another rank may have one
        # The mean, here or on its way, or what the user put in its place after backward().
        slot.grad = grad
        return grad is not None

    def apply(self, slots: Sequence[Slot]) -> None:
        """Step these parameters, and no others, with the user's optimizer."""
        shadows: dict[int, dict[str, Any]] = {}
        for slot in slots:
            shadow = shadows.setdefault(slot.group, {**self._snapshot[slot.group], "params": []})
            shadow["params"].append(slot.param)
        # The user may have zeroed or dropped .grad since step(): lend the optimizer the one that was stepped with.
        theirs = [slot.param.grad for slot in slots]
        groups = self._optimizer.param_groups
        for slot in slots:
            slot.param.grad = slot.grad
        self._optimizer.param_groups = [shadows[g] for g in sorted(shadows)]
        here = self._optimizer.__dict__
        scaling_now = {name: here.pop(name) for name in _SCALING if name in here}  # a later step's
        here.update(self._scaling)
        try:
            self._step(self._optimizer)
        finally:
            for name in self._scaling:
                del here[name]
            here.update(scaling_now)
            self._optimizer.param_groups = groups
            for slot, grad in zip(slots, theirs, strict=True):
                slot.param.grad = grad

    def step_whole(self, closure: Callable[[], Any] | None) -> Any:
        """One ordinary step of the whole optimizer, for classes whose formula spans parameters."""
        return self._step(self._optimizer, closure) if closure is not None else self._step(self._optimizer)


def _frozen(group: dict[str, Any]) -> dict[str, Any]:
    """The group's hyperparameters by value; schedulers change a tensor learning rate in place."""
    return {key: _kept(value) for key, value in group.items() if key != "params"}


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
