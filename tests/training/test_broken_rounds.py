"""A backward pass that breaks off on one rank: the others are told why, and nobody hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import ranks
from networks import Side, dovetailed

from dovetail.errors import PeerLost
from dovetail.training import distribute, shutdown

BOUND = 12.0  # seconds; a process group hears of it through the store, which is asked every second
POLICIES = ["p3", "dear", "bulk", "caramel", "ibatch"]


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def _break(_: torch.Tensor) -> None:
    raise ValueError("this batch is bad\nwith details below")


def _by_method(side: Side) -> None:
    side.loss(1).backward()


def _out_of_sight(side: Side) -> None:
    """As C++ code starts it: neither torch's functions nor modes see it."""
    loss = side.loss(1)
    with torch._C.DisableTorchFunction():
        torch.autograd.Variable._execution_engine.run_backward((loss,), (torch.ones(()),), False, False, (), True, True)


def broken(rank: int, size: int, options: dict[str, str], backward: Callable[[Side], None]) -> tuple[str, str, float]:
    """What backward() raised, what a later step raised, and how long it all took; the middle layer's hook fails.

    In the end the same model is distributed again, and trains.
    """
    side = dovetailed("mlp", _sgd, **options)
    side.step(0)
    side.model.state_dict()
    hook = side.model.middle.weight.register_hook(_break) if rank == 0 else None  # type: ignore[union-attr, operator]
    begun = time.monotonic()
    first = second = ""
    side.optimizer.zero_grad()
    try:
        backward(side)
        side.optimizer.step()
        side.model.state_dict()
    except (ValueError, PeerLost) as error:
        first = f"{type(error).__name__}: {error}"
    try:
        side.step(2)
    except PeerLost as error:
        second = str(error)
    try:
        shutdown(side.model)
    except PeerLost:
        assert rank == 1, "who has had the error itself is not told again"
    took = time.monotonic() - begun
    if hook is not None:
        hook.remove()
    _trains_again(side, options)
    return first, second, took


def _trains_again(side: Side, options: dict[str, Any]) -> None:
    before = side.model.middle.weight.detach().clone()  # type: ignore[union-attr, operator]
    side.optimizer = distribute(side.model, _sgd(side.model), **options)
    side.step(0)
    shutdown(side.model)
    ours: Any = side.model.middle.weight
    assert not torch.equal(before, ours)
    every = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(every, ours.detach())
    assert all(torch.equal(every[0], one) for one in every)


@pytest.mark.parametrize(
    ("policy", "engine"), [*((policy, "native") for policy in POLICIES), ("dear", "c10d"), ("p3", "c10d")]
)
def test_an_error_inside_backward_reaches_every_rank(policy: str, engine: str) -> None:
    with ranks(2, broken, gloo=True, args=({"policy": policy, "engine": engine}, _by_method)) as group:
        (mine, again, took), (theirs, later, waited) = group.results(60)
    assert mine.startswith("ValueError: this batch is bad")
    assert "backward() raised ValueError: this batch is bad" in again
    assert "\n" not in again
    assert theirs.startswith("PeerLost: rank 0")
    assert "this batch is bad" in theirs
    assert "rank 0" in later
    assert max(took, waited) < BOUND


@pytest.mark.parametrize("engine", ["native", "c10d"])
@pytest.mark.parametrize("policy", ["dear", "p3"])
def test_also_where_backward_was_begun_out_of_sight(policy: str, engine: str) -> None:
    with ranks(2, broken, gloo=True, args=({"policy": policy, "engine": engine}, _out_of_sight)) as group:
        (mine, again, took), (theirs, later, waited) = group.results(60)
    assert mine.startswith("ValueError")
    assert "a backward pass ended with an error" in again
    assert theirs.startswith("PeerLost: rank 0")
    assert "a backward pass ended with an error" in theirs
    assert "rank 0" in later
    assert max(took, waited) < BOUND


def _double(param: Any) -> None:
    param.grad.mul_(2)


def refused(rank: int, size: int, options: dict[str, str]) -> tuple[str, float]:
    """Rank 0 changes a gradient that has left, which is refused when backward() ends."""
    side = dovetailed("mlp", _sgd, **options)
    side.step(0)
    if rank == 0:
        weight: Any = side.model.last.weight
        node = weight.expand_as(weight).grad_fn.next_functions[0][0]  # its hooks come after all of the parameter's
        node.register_hook(lambda *_: _double(weight))
    begun = time.monotonic()
    try:
        for i in (1, 2):  # all of the first round may have left before it was refused
            side.step(i)
            side.model.state_dict()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begun
    return "", 0.0


@pytest.mark.parametrize("engine", ["native", "c10d"])
def test_a_refusal_on_one_rank_reaches_the_other(engine: str) -> None:
    with ranks(2, refused, gloo=True, args=({"policy": "dear", "engine": engine},)) as group:
        (mine, took), (theirs, waited) = group.results(60)
    assert mine.startswith("Misuse: the gradient of 'last.weight' was changed")
    assert theirs.startswith("PeerLost: rank 0")
    assert "was changed inside backward()" in theirs
    assert max(took, waited) < BOUND


def alone(rank: int, size: int) -> tuple[bool, int]:
    side = dovetailed("mlp", _sgd)
    side.step(0)
    handle = side.model.middle.weight.register_hook(_break)  # type: ignore[union-attr, operator]
    with pytest.raises(ValueError, match="bad"):
        side.step(1)
    handle.remove()
    before = side.model.middle.weight.detach().clone()  # type: ignore[union-attr, operator]
    side.step(2)
    shutdown(side.model)
    return torch.equal(before, side.model.middle.weight), len(side.model.state_dict())  # type: ignore[arg-type, union-attr]


def test_alone_a_broken_backward_pass_ends_nothing() -> None:
    with ranks(1, alone, gloo=True) as group:
        assert group.results(60) == [(False, 6)]
