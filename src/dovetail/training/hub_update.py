"""The update at the aggregator: it holds parameters and optimizer state, and sends new values instead of means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from dovetail.engine.rule import Hyper, Rule
from dovetail.errors import BadInput, Misuse
from dovetail.training.slots import Slot, dense_like

_STATE = {"sgd": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")}
_KINDS = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}


class Masters(Protocol):
    """The aggregator's copies as a session shows them."""

    def bind(self, tensor: int, ptr: int, /) -> None: ...
    def put(self, tensor: int, slot: int, ptr: int, /, *, step: int) -> None: ...
    def get(self, tensor: int, slot: int, ptr: int, /) -> bool: ...
    def step_of(self, tensor: int, /) -> int: ...
    def absent(self, tensor: int, /) -> bool: ...


def rule_of(optimizer: Optimizer) -> Rule:
    """The optimizer's formula as the aggregator runs it; BadInput says what it cannot do."""
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        raise BadInput(f"{type(optimizer).__name__} does not run at the aggregator; use update='worker'")
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.dtype not in (torch.float32, torch.float64) or not param.is_contiguous():
                raise BadInput("the aggregator updates contiguous float32 and float64 only; use update='worker'")
        if group.get("decoupled_weight_decay") and kind == "adam":
            kind = "adamw"
    return Rule(
        kind=kind,
        nesterov=_same(optimizer, "nesterov"),
        maximize=_same(optimizer, "maximize"),
        amsgrad=_same(optimizer, "amsgrad"),
    )


def _same(optimizer: Optimizer, flag: str) -> bool:
    values = {bool(group.get(flag, False)) for group in optimizer.param_groups}
    if len(values) > 1:
        raise BadInput(f"parameter groups differ in {flag!r}, which the aggregator cannot do; use update='worker'")
    return values.pop()


class HubUpdate:
    """Keeps the aggregator's copies, the user's parameters and torch's optimizer state in step."""

    remote = True
    by_parameter = True

    def __init__(self, optimizer: Optimizer, slots: Sequence[Slot], rank: int) -> None:
        self.rule = rule_of(optimizer)
        self._optimizer = optimizer
        self._slots = slots
        self._leader = rank == 0  # one rank writes the aggregator's copies for all
        self._masters: Masters | None = None
        self._sent: list[Hyper] = []
        self._bound = [0] * len(slots)
        self._versions = [0] * len(slots)  # torch's count of changes when the values here were the aggregator's
        self._before: dict[int, torch.Tensor] = {}  # values that code outside torch's sight may change
        self._updates = [0] * len(slots)
        self._told = False  # all ranks hold what the aggregator was given last, which may still be on its way

    def attach(self, masters: Masters) -> None:
        """A new session: it gets the values and the state as they are now."""
        self._masters = masters
        self._bound = [0] * len(self._slots)
        self.push()
        self._told = False  # the leader's state may be news to the others

    def push(self) -> None:
        """Set the aggregator's values and optimizer state from the parameters and `optimizer.state`."""
        names = _STATE[self.rule.kind]
        for slot in self._slots:
            state = self._optimizer.state.get(slot.param, {})
            held = [state.get(name) for name in names]
            self._updates[slot.index] = int(state.get("step", any(h is not None for h in held)))
            self._put(slot, 0, slot.param)
            for number, tensor in enumerate(held, start=1):
                if tensor is not None:
                    self._put(slot, number, tensor.detach().to(slot.param.dtype).contiguous())
        self._told = True

    def pull(self) -> None:
        """Bring `optimizer.state` up to date with the aggregator, in torch's own form."""
        assert self._masters is not None
        if self._told:
            return
        names = _STATE[self.rule.kind]
        if self.rule.kind == "sgd" and all(group["momentum"] == 0 for group in self._optimizer.param_groups):
            return
        for slot in self._slots:
            held = {name: dense_like(slot.param) for name in names}
            if not self._updates[slot.index]:
                continue
            found = [self._masters.get(slot.index, n, t.data_ptr()) for n, t in enumerate(held.values(), start=1)]
            if not all(found):
                continue
            state: dict[str, Any] = dict(held)
            if self.rule.kind != "sgd":
                state["step"] = torch.tensor(float(self._masters.step_of(slot.index)))
            self._optimizer.state[slot.param] = state

    def prepare(self) -> list[Hyper]:
        """Before a round: values the user changed go to the aggregator; the hyperparameters that will be used."""
        for slot in self._slots:
            param, i = slot.param, slot.index
            before = self._before.pop(i, None)
            moved = param.data_ptr() != self._bound[i]
            if moved or param._version != self._versions[i] or (before is not None and not torch.equal(before, param)):
                self._put(slot, 0, param)
        self._told = False
        self._sent = [_hyper(group) for group in self._optimizer.param_groups]
        return self._sent

    def _put(self, slot: Slot, number: int, values: torch.Tensor) -> None:
        assert self._masters is not None
        if number == 0:
            if not values.is_contiguous():
                raise Misuse(f"parameter {slot.name!r} is no longer contiguous; the aggregator cannot update it")
            self._bound[slot.index] = values.data_ptr()
            self._versions[slot.index] = values._version
            self._masters.bind(slot.index, values.data_ptr())
        if self._leader:
            self._masters.put(slot.index, number, values.data_ptr(), step=self._updates[slot.index])

    def touched(self, slot: Slot) -> None:
        """Remember the values: the next round finds out whether they were changed."""
        if self._leader:
            self._before.setdefault(slot.index, slot.param.detach().clone())

    def schedule(self, slots: Sequence[Slot]) -> list[Slot]:
        """All slots; Misuse if gradients or hyperparameters changed after they left."""
        if [_hyper(group) for group in self._optimizer.param_groups] != self._sent:
            raise Misuse(
                "hyperparameters changed between backward() and step(), but the aggregator had them at backward(); "
                "change them before backward() or use update='worker'"
            )
        for slot in slots:
            grad = slot.param.grad
            if grad is not slot.buffer or (grad is not None and grad._version != slot.stamp):
                raise Misuse(
                    f"the gradient of {slot.name!r} was changed after backward(), when it had left for the aggregator; "
                    "clip or scale gradients with update='worker'"
                )
        return list(slots)

    def apply(self, slots: Sequence[Slot]) -> None:
        """The engine has written the new values: tell torch, and count them."""
        assert self._masters is not None
        torch.autograd.graph.increment_version([slot.param for slot in slots])
        for slot in slots:
            self._updates[slot.index] += not self._masters.absent(slot.index)
            self._versions[slot.index] = slot.param._version
            self._before.pop(slot.index, None)


def _hyper(group: dict[str, Any]) -> Hyper:
    beta1, beta2 = group.get("betas", (0.9, 0.999))
    return Hyper(
        lr=float(group["lr"]),
        momentum=float(group.get("momentum", 0.0)),
        dampening=float(group.get("dampening", 0.0)),
        weight_decay=float(group["weight_decay"]),
        beta1=float(beta1),
        beta2=float(beta2),
        eps=float(group.get("eps", 1e-8)),
    )
