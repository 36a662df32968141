"""The tensors being trained: one slot each, with what is known about its gradient and its value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from dovetail.errors import BadInput, Misuse

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}


class Slot:
    """One trained tensor; tied weights are one slot."""

    __slots__ = (
        "absent", "alone", "buffer", "buffer_at", "dropped", "due", "flying", "form", "grad", "grad_at", "group",
        "hook", "index", "known", "local", "name", "param", "param_at", "seen", "sent", "stamp", "steps", "stood",
    )  # fmt: skip

    def __init__(self, index: int, name: str, param: torch.nn.Parameter, group: int) -> None:
        self.index = index
        self.alone = (self,)
        self.name = name
        self.param = param
        self.form = (param.shape, param.dtype)
        self.group = group  # position of its group in optimizer.param_groups
        self.buffer: torch.Tensor | None = None  # the gradient in the engine's hands
        self.stamp = 0  # torch's count of changes to it when it left
        self.grad: torch.Tensor | None = None  # the gradient of the due update
        self.known = param.grad  # the last gradient that is the same on every rank
        self.sent = 0  # the round it was last handed over in
        self.absent = False  # it had no gradient here in that round
        self.dropped = False  # the user zeroed or replaced .grad since then
        self.stood: torch.Tensor | None = None  # an absent one: what stood at .grad when step() was called
        self.flying = False  # handed over, result not seen yet
        self.due = False  # step() was called, the update is not applied yet
        self.local = False  # holds gradients made under no_sync
        self.seen = False  # a forward pass read it through a torch function
        self.steps = 0  # updates its value contains
        self.buffer_at = self.grad_at = self.param_at = 0  # where the guard watches
        self.hook: Any = None  # torch's handle of the one that sends the gradient

    def send_last(self) -> None:
        """After all other hooks of the parameter: what they do to the gradient must be done when it leaves."""
        hooks: Any = self.param._post_accumulate_grad_hooks
        if self.hook is not None and self.hook.id in hooks:
            hooks[self.hook.id] = hooks.pop(self.hook.id)


def trained(model: torch.nn.Module, groups: Iterable[dict[str, Any]], *, in_host_memory: bool = True) -> list[Slot]:
    """Slots of the optimizer's trainable parameters, in registration order; frozen ones are left out."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm) and all(p.device.type == "cpu" for p in module.parameters()):
            raise BadInput(f"layer {name!r} is a SyncBatchNorm, which torch runs on GPUs only; use a plain BatchNorm")
    group_of: dict[torch.nn.Parameter, int] = {}
    for position, group in enumerate(groups):
        group_of.update(dict.fromkeys(group["params"], position))
    slots: list[Slot] = []
    for name, param in _named(model, group_of):
        if param.requires_grad:
            _check(name, param, torch.device("cpu") if in_host_memory else slots[0].param.device if slots else None)
            slots.append(Slot(len(slots), name, param, group_of[param]))
    if not slots:
        raise BadInput("the optimizer holds no trainable parameter; give distribute() the model's own optimizer")
    return slots


def check_own(model: torch.nn.Module, slots: Iterable[Slot]) -> None:
    """An optimizer may hold parameters from elsewhere as well, but not only those."""
    own = set(model.parameters())
    if not any(slot.param in own for slot in slots):
        raise BadInput(
            "none of the optimizer's parameters is one of the model's, so that the model would not be trained; make "
            "the optimizer from model.parameters() when the model has its final form"
        )


def settings(optimizer: torch.optim.Optimizer) -> list[str]:
    """What an optimizer was told, one line each."""
    return [f"optimizer {type(optimizer).__name__}"] + [
        f"{key}={value!r} in the optimizer's group {number}"
        for number, group in enumerate(optimizer.param_groups)
        for key, value in sorted(group.items())
        if isinstance(value, (bool, int, float, str, tuple))
    ]


def _named(model: torch.nn.Module, group_of: dict[torch.nn.Parameter, int]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The optimizer's parameters under the model's names; what the model does not own is numbered."""
    rest = dict(group_of)
    for name, param in model.named_parameters():
        if rest.pop(param, None) is not None:
            yield name, param
    for number, param in enumerate(rest):
        yield f"outside the model {number}", param


def _check(name: str, param: torch.Tensor, device: torch.device | None) -> None:
    if torch.nn.parameter.is_lazy(param) or param.is_meta:
        raise BadInput(f"parameter {name!r} has no values yet (lazy or meta); initialise the model before distribute()")
    if type(param).__torch_dispatch__ != torch.Tensor.__torch_dispatch__:
        raise BadInput(
            f"parameter {name!r} is a {type(param).__name__}, which holds its values in tensors of its own; dovetail "
            "trains plain ones (sharded or tensor-parallel models: the backend 'dovetail' under FSDP2 or DTensor)"
        )
    if device is not None and param.device != device:
        raise BadInput(
            f"parameter {name!r} is on {param.device}; the engine moves gradients on {device} only "
            "(parameters on one GPU each rank: engine='c10d')"
        )
    if param.dtype not in DTYPES or param.layout is not torch.strided:
        raise BadInput(
            f"parameter {name!r} is {param.layout} of {param.dtype}; dovetail trains dense "
            f"{', '.join(str(d).removeprefix('torch.') for d in DTYPES)}"
        )


def laid_out_like(grad: torch.Tensor, param: torch.Tensor) -> bool:
    """Whether both hold their elements at the same places of one gap-free block."""
    if grad.is_contiguous() and param.is_contiguous():
        return True
    return grad.stride() == param.stride() and torch.ops.aten.is_non_overlapping_and_dense(grad)


def dense_like(param: torch.Tensor) -> torch.Tensor:
    """Zeros in one gap-free block in the parameter's own order of elements."""
    return torch.zeros_like(param, memory_format=torch.preserve_format, requires_grad=False)


def dense_gradient(slot: Slot) -> torch.Tensor:
    """The slot's gradient as the engine can send it; Misuse says why it cannot."""
    grad = slot.param.grad
    assert grad is not None
    if grad.layout is not torch.strided or (grad.shape, grad.dtype) != slot.form:
        raise Misuse(
            f"the gradient of {slot.name!r} is {grad.layout} {list(grad.shape)} of {grad.dtype}; dovetail sends "
            "dense ones of the form the parameter had at distribute() (for an embedding: sparse=False)"
        )
    if grad.requires_grad:
        raise Misuse(
            f"backward(create_graph=True) gave {slot.name!r} a gradient with a graph of its own, which a mean over "
            "ranks cannot have; make second-order terms with torch.autograd.grad(..., create_graph=True)"
        )
    if not laid_out_like(grad, slot.param):
        slot.param.grad = grad = dense_like(slot.param).copy_(grad.detach())
    return grad


def drop(slot: Slot, *, set_to_none: bool) -> None:
    """Zero a gradient: one that is still needed stays as it is, and the parameter gets another."""
    slot.local, slot.dropped = False, True
    grad = slot.param.grad
    if grad is None:
        return
    if set_to_none:
        slot.param.grad = slot.known = None
    elif grad is slot.buffer or grad is slot.grad or grad is slot.stood:
        slot.param.grad = slot.known = dense_like(slot.param)
    else:
        grad.detach_().zero_()
        slot.known = grad


def is_mean(slot: Slot, number: int) -> bool:
    """Whether `.grad` is what round `number` makes of it, here or on its way, and nothing else."""
    with torch._C.DisableTorchFunction():
        grad = slot.param.grad
        if slot.sent != number or slot.dropped:
            return False
        if grad is None:
            return slot.absent
        held = slot.buffer if slot.flying else slot.known
        return grad is held and grad._version == slot.stamp and not (slot.absent and slot.flying)
