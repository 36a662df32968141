"""The optimizer's own attributes and copies right after `step()`, each as under DDP."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import networks
import torch
from networks import OPTIMIZERS, Side, both, dovetailed, in_flight
from scenarios_loop import SLOW
from torch import nn

from dovetail.training import shutdown


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["adam"](model.parameters())


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def _after_each_step(use: Callable[[Side], Any]) -> Callable[[Side], list[Any]]:
    def loop(side: Side) -> list[Any]:
        seen: list[Any] = []
        for i in range(4):
            seen.append(side.step(i))
            assert not side.dovetail or in_flight(side) > 0
            seen.append(use(side))
        return seen

    return loop


def optimizer_state_read_right_after_a_step() -> None:
    def values(side: Side) -> list[float]:
        states = [side.optimizer.state[p] for p in side.model.parameters()]
        return [value.sum().item() for state in states for value in state.values()]

    def size(side: Side) -> int:
        return len(side.optimizer.state)

    for use in (values, size):
        both(_after_each_step(use), _adam, update="worker", **SLOW)
        both(_after_each_step(use), _sgd, update="worker", **SLOW)
        both(_after_each_step(use), _sgd, update="hub", **SLOW)


def optimizer_state_changed_right_after_a_step() -> None:
    def clear(side: Side) -> None:
        side.optimizer.state.clear()

    def replace(side: Side) -> None:
        side.optimizer.state = defaultdict(dict)

    def forget_one(side: Side) -> None:
        del side.optimizer.state[side.model.middle.weight]

    def dampen(side: Side) -> None:
        for state in side.optimizer.state.values():
            state["exp_avg"].mul_(0.5)

    for use in (clear, replace, forget_one, dampen):
        both(_after_each_step(use), _adam, update="worker", **SLOW)


class _Mine(torch.optim.Adam):
    """A class that dovetail does not know."""


def optimizer_classes_come_back() -> None:
    assert "state" not in torch.optim.Adam.__dict__
    side, other = dovetailed("mlp", _adam, **SLOW), dovetailed("mlp", lambda m: _Mine(m.parameters()), **SLOW)
    alone = _adam(networks.build("mlp", 0))
    side.step(0)
    assert type(side.optimizer.state) is defaultdict
    assert not alone.state
    assert type(pickle.loads(pickle.dumps(side.optimizer))) is torch.optim.Adam
    assert len(copy.deepcopy(side.optimizer).state) == 6
    shutdown(side.model)
    other.step(0)
    assert len(other.optimizer.state) == 6
    shutdown(other.model)
    assert "state" not in torch.optim.Adam.__dict__
    assert len(side.optimizer.state) == 6


ALL = networks.scenarios(globals())
