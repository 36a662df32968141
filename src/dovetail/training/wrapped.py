"""A model in torch's DistributedDataParallel: its own reducer stands still while dovetail moves the gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dovetail.errors import BadInput, Misuse
from dovetail.training.buffers import Common
from dovetail.training.slots import Slot

# Calls that steer the reducer, which does nothing now: they would be ignored in silence.
_REFUSED = {
    "join": "ranks with fewer batches are the work of dovetail.join(model)",
    "register_comm_hook": "DDP's reducer, which runs communication hooks, sends nothing",
}


def check_wrapped(model: torch.nn.Module) -> None:
    """BadInput if the model is a DDP whose settings change what its ranks sum."""
    if not isinstance(model, DistributedDataParallel):
        inner = next((name for name, part in model.named_modules() if isinstance(part, DistributedDataParallel)), None)
        if inner is not None:
            raise BadInput(f"the model's part {inner!r} is a DDP model, which would sum a second time; distribute that")
        return
    if model.mixed_precision is not None:  # DDP makes a communication hook of it
        raise BadInput("the DDP model has mixed_precision, which dovetail would leave out; use torch.autocast")
    if model._comm_hooks:
        raise BadInput("the DDP model has a communication hook, which dovetail would leave out; distribute one without")
    if hasattr(model, "buffer_hook"):
        raise BadInput(
            "the DDP model has a hook for its buffers, which dovetail would leave out; distribute one without"
        )
    if getattr(model, "_delay_all_reduce_params", ()):
        raise BadInput(
            "the DDP model has delay_all_reduce_named_params, which dovetail would leave out; distribute one without"
        )
    if dist.get_world_size(model.process_group) != dist.get_world_size():
        raise BadInput("the DDP model's process_group is a part of all ranks; dovetail trains over the default group")


def check_common(common: Common, slots: Sequence[Slot]) -> None:
    """BadInput if the optimizer holds a parameter that every rank was to train on its own."""
    for slot in slots:
        if common.is_apart(slot.name):
            raise BadInput(
                f"parameter {slot.name!r} is one that DDP was told to ignore: every rank trains its own, but dovetail "
                "would train the mean; give it an optimizer that is not distributed"
            )


@contextmanager
def reducer_off(model: torch.nn.Module, no_sync: Callable[[torch.nn.Module], Any]) -> Iterator[None]:
    """While it lasts, a DDP model sends nothing itself, as under its own `no_sync`, which becomes ours."""
    if not isinstance(model, DistributedDataParallel):
        yield
        return
    off = {
        "require_backward_grad_sync": False,
        "require_forward_param_sync": False,  # buffers, too
        "_static_graph_delay_allreduce_enqueued": True,  # static_graph=True sends after its first backward pass
    }
    before = {name: getattr(model, name) for name in off if hasattr(model, name)}
    ours = {"no_sync": partial(no_sync, model)} | {name: partial(_refuse, name) for name in _REFUSED}
    ours["__getstate__"] = partial(_as_ddp, model, before, (*ours, "__getstate__"))
    model.__dict__.update({name: off[name] for name in before} | ours)
    try:
        yield
    finally:
        for name in ours:
            model.__dict__.pop(name, None)
        model.__dict__.update(before)


def _as_ddp(model: DistributedDataParallel, before: dict[str, Any], ours: Collection[str]) -> dict[str, Any]:
    """What copies and pickles are made of: nobody moves their gradients but DDP."""
    kind: Any = type(model)
    return {name: value for name, value in kind.__getstate__(model).items() if name not in ours} | before


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise Misuse(
        f"{name}() on a DDP model given to dovetail.distribute(): {_REFUSED[name]}; dovetail.shutdown() it first"
    )
