"""Changes of gradients that torch's own count of changes misses: GradScaler's, and those through `.data` or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from networks import OPTIMIZERS, Mlp, Side, both, dovetailed
from scenarios_loop import SLOW
from scenarios_state import _refused
from torch import nn

from dovetail.errors import BadInput, DovetailError, Misuse
from dovetail.training import clip_grad_norm_, distribute, shutdown, stats


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["plain"](model.parameters())


def _clipped(side: Side) -> float:
    if side.dovetail:
        return clip_grad_norm_(side.model, 0.5).item()
    return nn.utils.clip_grad_norm_(side.model.parameters(), 0.5).item()


def unscaled_gradients_are_clipped_by_their_own_norm() -> None:
    def loop(side: Side) -> list[float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        norms = []
        for i in range(4):
            side.optimizer.zero_grad()
            scaler.scale(side.loss(i)).backward()
            scaler.unscale_(side.optimizer)
            norms.append(_clipped(side))
            scaler.step(side.optimizer)
            scaler.update()
        return norms

    both(loop, _sgd, update="worker", **SLOW)
    both(loop, lambda model: OPTIMIZERS["adamw"](model.parameters()), update="worker")


def _through_data(grad: torch.Tensor) -> None:
    grad.data.clamp_(-0.001, 0.001)


def _through_numpy(grad: torch.Tensor) -> None:
    grad.numpy()[:] *= 0.5


def gradients_changed_through_their_memory() -> None:
    for change in (_through_data, _through_numpy):

        def loop(side: Side, change: Callable[[torch.Tensor], None] = change) -> list[float]:
            norms = []
            for i in range(4):
                side.optimizer.zero_grad()
                side.loss(i).backward()
                for param in side.model.parameters():
                    change(param.grad)  # type: ignore[arg-type]
                norms.append(_clipped(side))
                side.optimizer.step()
            return norms

        both(loop, _sgd, update="worker", **SLOW)


def such_changes_at_the_aggregator_are_refused() -> None:
    def scaled(side: Side) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(side.loss(0)).backward()
        scaler.step(side.optimizer)

    def by_hand(change: Callable[[torch.Tensor], None]) -> Callable[[Side], None]:
        def run(side: Side) -> None:
            side.loss(0).backward()
            change(side.model.last.weight.grad)  # type: ignore[union-attr, arg-type]
            side.optimizer.step()

        return run

    for run in (scaled, by_hand(_through_data), by_hand(_through_numpy)):
        side = dovetailed("mlp", _sgd, update="hub")
        _refused(Misuse, "was changed after backward", lambda run=run, side=side: run(side))  # type: ignore[misc]
        shutdown(side.model)


def optimizers_that_do_not_fit_are_refused() -> None:
    """Of other models, of other ranks' settings, and what is no optimizer at all."""
    model: Any = Mlp()

    def refused(words: str, *given: Any) -> None:
        _refused(DovetailError, words, lambda: distribute(*given))

    refused("none of the optimizer's parameters", model, _sgd(Mlp()))
    refused("got a SGD and a Mlp", _sgd(model), model)
    refused("got a generator and a SGD", model.parameters(), _sgd(model))
    apart = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + dist.get_rank()))
    refused("rank 0 has lr=0.1 in the optimizer's group 0, rank 1 has lr=0.2", model, apart)
    kind = (torch.optim.SGD, torch.optim.Adam)[dist.get_rank()]
    refused("rank 0 has optimizer SGD, rank 1 has optimizer Adam", model, kind(model.parameters(), lr=0.1))
    _refused(BadInput, "0 models are distributed here; call dovetail.distribute", stats)


ALL = [
    unscaled_gradients_are_clipped_by_their_own_norm, gradients_changed_through_their_memory,
    such_changes_at_the_aggregator_are_refused, optimizers_that_do_not_fit_are_refused,
]  # fmt: skip
