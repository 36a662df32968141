"""The emulated accelerator keeps its time, and its gradients are real."""

from __future__ import annotations

import time

import pytest
import torch

from dovetail.bench.emulate import Accelerator, Emulated
from dovetail.bench.models import Layer

LAYERS = (Layer("a.conv", 100, 30.0), Layer("b", 0, 10.0), Layer("c", 1000, 60.0))


class Clock:
    """Time that passes only in sleeps, each `late` too long."""

    def __init__(self, late: float) -> None:
        self.now, self.late = 0.0, late

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late


def test_late_wake_ups_do_not_add_up() -> None:
    clock = Clock(late=0.003)
    accelerator = Accelerator(clock=lambda: clock.now, sleep=clock.sleep)
    for _ in range(100):
        accelerator.run("op", 0.010, lambda: torch.zeros(()), None)
    assert clock.now == pytest.approx(1.0 + 0.003)


def test_waits_between_ops_are_never_made_up_for() -> None:
    clock = Clock(late=0.0)
    accelerator = Accelerator(clock=lambda: clock.now, sleep=clock.sleep)
    for _ in range(10):
        accelerator.run("op", 0.010, lambda: torch.zeros(()), None)
        clock.now += 0.5
    assert clock.now == pytest.approx(10 * 0.510)


def test_time_is_shared_out_by_flops_one_to_two() -> None:
    model = Emulated(LAYERS, compute=0.12)
    seen: dict[str, float] = {}
    model.record = lambda name, start, end: seen.__setitem__(name, end - start)
    began = time.monotonic()
    model(torch.zeros(1)).sum().backward()
    assert 0.115 < time.monotonic() - began < 5
    assert list(seen) == ["a_conv/forward", "b/forward", "c/forward", "c/backward", "b/backward", "a_conv/backward"]
    assert seen["c/forward"] == pytest.approx(0.024, abs=0.01)
    assert seen["c/backward"] == pytest.approx(0.048, abs=0.02)


def test_sizes_are_the_published_ones_times_scale() -> None:
    assert [p.numel() for p in Emulated(LAYERS, compute=0.0, scale=0.1).parameters()] == [10, 100]


def test_gradients_differ_by_rank_and_iteration_and_optimizers_use_them() -> None:
    def gradient(rank: int, iteration: int) -> torch.Tensor:
        model = Emulated(LAYERS, compute=0.0, rank=rank)
        model.iteration = iteration
        model(torch.zeros(1)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        weight = list(model.parameters())[-1]
        assert weight.grad is not None
        assert torch.equal(weight, -weight.grad)
        return weight.grad

    assert torch.equal(gradient(0, 3), gradient(0, 3))
    assert not torch.equal(gradient(0, 3), gradient(1, 3))
    assert not torch.equal(gradient(0, 3), gradient(0, 4))


def test_the_forward_pass_reads_every_parameter() -> None:
    model = Emulated(LAYERS, compute=0.0)
    before = model(torch.zeros(1)).item()
    with torch.no_grad():
        list(model.parameters())[-1][0] = 5.0
    assert model(torch.zeros(1)).item() == before + 5.0


def test_a_wait_for_a_parameter_is_not_taken_for_computing() -> None:
    from torch.overrides import TorchFunctionMode

    class SlowReads(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is torch.Tensor.__getitem__:
                time.sleep(0.05)
            return function(*args, **(kwargs or {}))

    model = Emulated(LAYERS, compute=0.12)
    began = time.monotonic()
    with SlowReads():
        model(torch.zeros(1))
    assert time.monotonic() - began > 0.04 + 2 * 0.05, "the time of the waits was made up for"
