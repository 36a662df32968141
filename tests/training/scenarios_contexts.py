"""Where a due update is applied is chance: whatever context of torch's is on there must not change what comes out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import networks
import torch
from networks import OPTIMIZERS, Side, batch, both, in_flight
from scenarios_loop import SLOW
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["adam"](model.parameters())


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def _read_between_steps(read: Callable[[Side], Any]) -> Callable[[Side], list[Any]]:
    """A read while the first step's results are on their way, then steps whose results arrive elsewhere."""

    def loop(side: Side) -> list[Any]:
        seen = [side.step(0)]
        assert not side.dovetail or in_flight(side) > 0
        seen += [read(side), side.step(1), side.step(2), read(side), side.step(3)]
        states = side.optimizer.state_dict()["state"].values()
        return [*seen, [v.dtype for state in states for v in state.values() if isinstance(v, torch.Tensor)]]

    return loop


def _evaluate(side: Side) -> Any:
    return side.model(batch("mlp", 0, 99)[0]).tolist()


def evaluation_in_inference_mode() -> None:
    def evaluate(side: Side) -> Any:
        with torch.inference_mode():
            return _evaluate(side)

    for make in (_adam, _sgd):
        both(_read_between_steps(evaluate), make, update="worker", **SLOW)
    both(_read_between_steps(evaluate), _sgd, update="hub", **SLOW)


def evaluation_in_other_contexts() -> None:
    contexts: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
        "no_grad": torch.no_grad,
        "enable_grad": torch.enable_grad,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "default dtype": _doubles,
        "meta device": lambda: torch.device("meta"),
        "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    }
    for context in contexts.values():

        def evaluate(side: Side, context: Callable[[], Any] = context) -> Any:
            x = batch("mlp", 0, 99)[0]
            with context():
                y = side.model(x)
            return y.tolist()

        for make in (_adam, _sgd):
            both(_read_between_steps(evaluate), make, update="worker", **SLOW)


class _Operators(TorchDispatchMode):
    """Notes what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def dispatch_modes_do_not_see_updates() -> None:
    def evaluate(side: Side) -> Any:
        with _Operators() as operators:
            side.model(torch.ones(2, 8))
        return operators.seen

    both(_read_between_steps(evaluate), _adam, update="worker", **SLOW)


def traced_and_exported_right_after_a_step() -> None:
    x = torch.ones(2, 8)

    def trace(side: Side) -> Any:
        return torch.jit.trace(side.model, (x,))(x).tolist()

    def export(side: Side) -> Any:
        return torch.export.export(side.model, (x,)).module()(x).tolist()

    def export_another(side: Side) -> Any:
        return torch.export.export(networks.build("mlp", 7), (x,), strict=True).module()(x).tolist()

    for use in (trace, export, export_another):
        for make in (_adam, _sgd):
            both(_read_between_steps(use), make, update="worker", **SLOW)


@contextlib.contextmanager
def _doubles() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def function_transforms_right_after_a_step() -> None:
    def loss_of(model: nn.Module, params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, params, (x,)).square().mean()

    def slopes(side: Side) -> Any:
        found = grad(lambda params: loss_of(side.model, params, torch.ones(2, 8)))(dict(side.model.named_parameters()))
        return [value.tolist() for value in found.values()]

    def slope_of_inputs(side: Side) -> Any:
        return grad(lambda x: side.model(x).square().mean())(torch.ones(2, 8)).tolist()

    def each_input(side: Side) -> Any:
        return vmap(side.model)(torch.ones(4, 2, 8)).tolist()

    def each_slope(side: Side) -> Any:
        params = dict(side.model.named_parameters())
        found = vmap(grad(lambda p, x: loss_of(side.model, p, x)), in_dims=(None, 0))(params, torch.ones(4, 2, 8))
        return [value.tolist() for value in found.values()]

    def jacobian(side: Side) -> Any:
        return torch.func.jacrev(side.model)(torch.ones(8)).tolist()

    def forward_mode(side: Side) -> Any:
        return torch.func.jvp(side.model, (torch.ones(8),), (torch.ones(8),))[1].tolist()

    for read in (slopes, slope_of_inputs, each_input, each_slope, jacobian, forward_mode):
        for make in (_adam, _sgd):
            both(_read_between_steps(read), make, update="worker", **SLOW)


ALL = networks.scenarios(globals())
