"""One training step as a thing to run: model, example inputs and loss, without leaving marks on the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.errors import BadInput
from dovetail.trace.graph import Param

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Step:
    """A model, the inputs of one batch, and how its output becomes a scalar loss."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Loss
    settle: Callable[[], None]  # waits until the device has done what it was told, so that a clock can be read

    @classmethod
    def of(cls, model: nn.Module, example_inputs: Any, loss: Loss | None) -> Step:
        """Inputs may be one tensor, a sequence of positional ones, or a mapping of keyword ones."""
        if not isinstance(model, nn.Module):
            raise BadInput(f"the model is a {type(model).__name__}; give a torch.nn.Module")
        on_device = any(p.device.type != "cpu" for p in model.parameters())
        settle = torch.accelerator.synchronize if on_device else _already_settled
        if isinstance(example_inputs, Mapping):
            return cls(model, (), dict(example_inputs), loss or own_loss, settle)
        args = tuple(example_inputs) if isinstance(example_inputs, Sequence) else (example_inputs,)
        return cls(model, args, {}, loss or own_loss, settle)

    def forward(self) -> Tensor:
        """The loss of the batch, as autograd knows it."""
        return self.loss(self.model(*self.args, **self.kwargs))

    def check(self) -> None:
        """Refuse a step that cannot be trained, with the model's own reason."""
        try:
            value = self.forward()
        except Exception as error:
            raise BadInput(f"the model fails on its example inputs: {one_line(error)}") from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise BadInput(f"the loss is {shape}, not one number; give loss=function of the model's output")
        if not value.requires_grad:
            raise BadInput("the loss does not depend on any parameter that requires a gradient")

    def timed(self) -> float:
        """Seconds of one real forward and backward, gradients fresh as after zero_grad()."""
        for parameter in self.model.parameters():
            parameter.grad = None
        self.settle()
        start = time.perf_counter()
        self.forward().backward()  # type: ignore[no-untyped-call]
        self.settle()
        return time.perf_counter() - start


def _already_settled() -> None:
    """A CPU op is done when it returns."""


def own_loss(output: Any) -> Tensor:
    """The loss a model computes itself: its output, the output's `loss`, or its entry "loss"."""
    if isinstance(output, Tensor):
        return output
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(found, Tensor):
        raise BadInput(f"the model's output ({type(output).__name__}) holds no loss; give loss=function of the output")
    return found


def one_line(error: BaseException, limit: int = 160) -> str:
    """The kind of an error and the start of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:limit]}" if text else type(error).__name__


@contextmanager
def unmarked(model: nn.Module) -> Iterator[None]:
    """Give gradients, buffers and the random state back as they were."""
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def aliases(model: nn.Module) -> dict[str, str]:
    """Every name of every trainable parameter -> the first name of its storage: tied weights are one parameter."""
    first: dict[object, str] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            key = (parameter.data_ptr(), parameter.numel()) if parameter.data_ptr() else id(parameter)
            names[name] = first.setdefault(key, name)
    return names


def parameters(model: nn.Module) -> tuple[Param, ...]:
    """The trainable parameters in the model's order, tied ones once."""
    shown = dict(model.named_parameters(remove_duplicate=False))
    kept = dict.fromkeys(aliases(model).values())
    return tuple(Param(n, shown[n].numel() * shown[n].element_size(), shown[n].element_size()) for n in kept)
