"""The user's own hooks, registered after `distribute`, that look at or change gradients inside backward()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networks
import torch
from networks import OPTIMIZERS, Side, both, dovetailed
from scenarios_loop import SLOW
from scenarios_state import _refused
from torch import nn

from dovetail.errors import DovetailError
from dovetail.training import distribute, shutdown


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def _backward(loss: torch.Tensor) -> None:
    loss.backward()


def _backward_unseen(loss: torch.Tensor) -> None:
    """As code does that calls torch's engine itself: no torch function tells that a backward pass begins."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def gradients_read_inside_backward() -> None:
    """What a hook reads there is this rank's own gradient, as under DDP: the mean comes after backward()."""

    def loop(backward: Callable[[torch.Tensor], None]) -> Callable[[Side], list[Any]]:
        def run(side: Side) -> list[Any]:
            seen: list[Any] = []
            for p in side.model.parameters():
                p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))  # type: ignore[union-attr]
                p.register_hook(lambda g: g * 2)
                p.register_hook(lambda g, p=p: seen.append(p.grad is None))  # type: ignore[misc]
            for i in range(3):
                side.optimizer.zero_grad()
                backward(side.loss(i))
                seen.append(side.model.middle.weight.grad.norm().item())  # type: ignore[union-attr, operator]
                side.optimizer.step()
            return seen

        return run

    for policy in ("p3", "bulk", "caramel", "dear", "ddp"):
        for backward in (_backward, _backward_unseen):
            both(loop(backward), _sgd, update="worker", policy=policy)
    for backward in (_backward, _backward_unseen):
        both(loop(backward), _sgd, update="worker", **SLOW)
        both(loop(backward), _sgd, update="worker", engine="c10d", policy="bulk")


def reading_what_has_left_does_not_hang() -> None:
    """A gradient on its way is no use inside backward(), but to look at it must not wait for gradients to come."""

    def loop(side: Side) -> list[float]:
        model: Any = side.model
        looked = []
        model.first.weight.register_post_accumulate_grad_hook(lambda _: looked.append(model.last.weight.grad.norm()))
        losses = []
        for i in range(3):
            side.optimizer.zero_grad()
            loss = side.loss(i)
            (_backward_unseen if i else _backward)(loss)
            side.optimizer.step()
            losses.append(loss.item())
        return losses

    for policy in ("bulk", "ddp", "p3"):
        both(loop, _sgd, update="worker", policy=policy)


def _double(param: Any) -> None:
    param.grad.mul_(2)


def _replace(param: Any) -> None:
    param.grad = param.grad * 2


def _drop(param: Any) -> None:
    param.grad = None


def gradients_changed_by_late_hooks() -> None:
    for change in (_double, _replace):

        def loop(side: Side, change: Callable[[Any], None] = change) -> list[float]:
            side.model.middle.weight.register_post_accumulate_grad_hook(change)  # type: ignore[operator, union-attr]
            side.model.last.weight.register_post_accumulate_grad_hook(change)  # type: ignore[operator, union-attr]
            return [side.step(i) for i in range(3)]

        both(loop, _sgd, update="worker", **SLOW)
        both(loop, _sgd, update="hub")


def gradients_changed_after_they_left_are_refused() -> None:
    """By a hook that no order can put before ours: one of the graph's own nodes. Whose rank is told first says it."""
    for change in (_double, _replace, _drop):
        side = dovetailed("mlp", _sgd, update="worker")
        weight: Any = side.model.middle.weight
        node = weight.expand_as(weight).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_, change=change, weight=weight: change(weight))
        for backward in (_backward, _backward_unseen):
            _refused(DovetailError, "inside backward()", lambda b=backward, s=side: b(s.loss(0)))  # type: ignore[misc]
            shutdown(side.model)
            distribute(side.model, side.optimizer, update="worker")
        shutdown(side.model)


def steps_inside_backward_are_refused() -> None:
    side = dovetailed("mlp", _sgd, update="worker")
    side.model.first.weight.register_post_accumulate_grad_hook(lambda p: side.optimizer.step())  # type: ignore[operator, union-attr]
    _refused(DovetailError, "inside backward()", lambda: side.loss(0).backward())
    shutdown(side.model)


ALL = networks.scenarios(globals())
