"""The optimizer's own methods, on the instance: the class stays what it was, and so do pickles and schedulers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any

import torch
from torch.optim import Optimizer

from dovetail.errors import BadInput, Misuse
from dovetail.training.hub_update import HubUpdate
from dovetail.training.job import Job
from dovetail.training.state_reads import watch_state
from dovetail.training.update import WorkerUpdate, plain_step

_DEPTH = 8  # frames between a call of step() and ours: torch's hooks, a scheduler's or a profiler's wrapper
_NAMES = ("step", "zero_grad", "state_dict", "load_state_dict", "__getstate__")


def check_untouched(optimizer: Optimizer) -> None:
    """BadInput if something else has replaced the methods that dovetail replaces."""
    for name in _NAMES:
        found = optimizer.__dict__.get(name)
        if found is not None and not hasattr(found, "_wrapped_by_lr_sched"):
            raise BadInput(f"optimizer.{name} was replaced by other code; call dovetail.distribute() before that")


def _makes_state(frame: FrameType | None) -> bool:
    """Whether the step below is the one with zero gradients by which torch.distributed.checkpoint makes state."""
    helper = getattr(sys.modules.get("torch.distributed.checkpoint.state_dict"), "_init_optim_state", None)
    if helper is None:
        return False
    for _ in range(_DEPTH):
        if frame is None or frame.f_code is helper.__code__:
            return frame is not None
        frame = frame.f_back
    return False


class Overrides:
    """Replaces the methods until `remove`."""

    def __init__(self, optimizer: Optimizer, job: Job, update: WorkerUpdate | HubUpdate) -> None:
        self._optimizer = optimizer
        self._job = job
        self._update = update
        self._slot_of = {slot.param: slot for slot in job.slots}
        self._count = sum(len(group["params"]) for group in optimizer.param_groups)
        self._frozen = [p for group in optimizer.param_groups for p in group["params"] if p not in self._slot_of]
        self._synchronised = job.steps  # the step whose state was last seen to be in `optimizer.state`
        self._unwatch = watch_state(optimizer, self._before_state_is_read)
        self._before = {name: optimizer.__dict__[name] for name in _NAMES if name in optimizer.__dict__}
        for name, function in (
            ("step", self._with_hooks()),
            ("zero_grad", lambda _, set_to_none=True: self._zero_grad(set_to_none)),
            ("state_dict", lambda _: self._state_dict()),
            ("load_state_dict", lambda _, state_dict: self._load_state_dict(state_dict)),
            ("__getstate__", lambda _: self._getstate()),
        ):
            optimizer.__dict__[name] = MethodType(function, optimizer)

    def remove(self) -> None:
        """Give the optimizer its own methods back."""
        self._unwatch()
        for name in _NAMES:
            self._optimizer.__dict__.pop(name, None)
        self._optimizer.__dict__.update(self._before)

    def _with_hooks(self) -> Callable[..., Any]:
        """Our step inside torch's wrapper, so that step hooks fire once per call as always."""

        def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers look whether a step came first
            return self._step(closure)

        hooked: Callable[..., Any] = Optimizer.profile_hook_step(step)
        hooked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        return hooked

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if not self._optimizer.__dict__["state"] and _makes_state(sys._getframe()):
            return self._make_state()
        self._check_params()
        if not self._update.by_parameter:
            assert isinstance(self._update, WorkerUpdate)
            return self._step_whole(self._update, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._job.step()
        return loss

    def _make_state(self) -> None:
        """torch's checkpoint helper wants the state of an optimizer that seems to have none; nothing is to travel."""
        self._synchronise()
        if not self._optimizer.state:
            plain_step(self._optimizer)(self._optimizer)
            if isinstance(self._update, HubUpdate):
                self._update.push()

    def _step_whole(self, update: WorkerUpdate, closure: Callable[[], Any] | None) -> Any:
        """For formulas that span parameters (LBFGS, unknown classes): wait for all means, then one ordinary step."""

        def synced() -> Any:
            assert closure is not None
            loss = closure()
            self._gather_means()
            return loss

        if closure is None:
            self._gather_means()
        result = update.step_whole(synced if closure is not None else None)
        self._job.whole_step()
        return result

    def _gather_means(self) -> None:
        self._job.close_round()
        self._job.settle_all()

    def _check_params(self) -> None:
        count = sum(len(group["params"]) for group in self._optimizer.param_groups)
        thawed = any(p.requires_grad or p.grad is not None for p in self._frozen)
        if count != self._count or thawed:
            what = "was frozen when distribute() was called and trains now" if thawed else "joined the optimizer"
            raise Misuse(f"a parameter {what}; call dovetail.shutdown(model) and dovetail.distribute() again")

    def _zero_grad(self, set_to_none: bool) -> None:
        for group in self._optimizer.param_groups:
            for param in group["params"]:
                slot = self._slot_of.get(param)
                if slot is not None:
                    self._job.drop_grad(slot, set_to_none=set_to_none)
                elif param.grad is not None:
                    param.grad = None if set_to_none else torch.zeros_like(param.grad)

    def _before_state_is_read(self) -> None:
        if self._synchronised != self._job.steps:
            self._synchronise()

    def _synchronise(self) -> None:
        self._job.settle_due()
        before, self._synchronised = self._synchronised, self._job.steps
        try:
            if isinstance(self._update, HubUpdate):
                self._update.pull()  # which writes to the state itself
        except BaseException:
            self._synchronised = before
            raise

    def _state_dict(self) -> Any:
        self._synchronise()
        return type(self._optimizer).state_dict(self._optimizer)

    def _load_state_dict(self, state_dict: Any) -> None:
        self._job.settle_due()
        self._synchronised = self._job.steps  # what is there is overwritten, here and at the aggregator
        type(self._optimizer).load_state_dict(self._optimizer, state_dict)
        if isinstance(self._update, HubUpdate):
            self._update.push()

    def _getstate(self) -> Any:
        self._synchronise()
        return type(self._optimizer).__getstate__(self._optimizer)
