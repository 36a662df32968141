"""An emulated accelerator: a real autograd module whose layers hold parameters and sleep for their FLOPs.

The host's cores stay free, as they do beside a GPU; parameters, gradients, hooks and optimizers are torch's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.bench.models import Layer

FORWARD_SHARE = 1 / 3  # a backward pass takes twice as long as the forward pass

Record = Callable[[str, float, float], None]  # name of the op, start, end


class Accelerator:
    """Runs one op after another, each for its time; an op that ends late is made up for by the next.

    What is made up for is only what happens inside ops (late wake-ups, the copy that stands for a gradient), as an
    accelerator would not lose that time either. Time between ops, in hooks and waits, is never made up for.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep):
        self._clock, self._sleep = clock, sleep
        self._late = 0.0

    def run(self, name: str, seconds: float, work: Callable[[], Tensor], record: Record | None) -> Tensor:
        """Do the `work` and end `seconds` after the start, less what the op before was late."""
        start = self._clock()
        deadline = start + seconds - self._late
        result = work()
        left = deadline - self._clock()
        if left > 0:
            self._sleep(left)
        end = self._clock()
        self._late = max(0.0, end - deadline) if seconds else 0.0
        if record is not None:
            record(name, start, end)
        return result


class Emulated(nn.Module):
    """A chain of `layers` at `scale` whose forward and backward pass take `compute` seconds together."""

    def __init__(self, layers: Sequence[Layer], *, compute: float, scale: float = 1.0, rank: int = 0) -> None:
        super().__init__()
        second = compute / sum(layer.flops for layer in layers)
        self.accelerator = Accelerator()
        self.record: Record | None = None
        self.iteration = 0  # of the gradients that the next backward pass makes
        largest = max(layer.elements(scale) for layer in layers)
        values = torch.randn(largest, generator=torch.Generator().manual_seed(1 + rank))
        self._values = values  # a plain attribute: not a buffer, which would be broadcast from rank 0
        names = [layer.name.replace(".", "_") for layer in layers]
        self.layers = nn.ModuleDict(
            {
                name: _Block(self, name, elements=layer.elements(scale), seconds=layer.flops * second)
                for name, layer in zip(names, layers, strict=True)
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.layers.values():
            x = block(x)
        return x

    def gradient(self, elements: int) -> Tensor:
        """Values that differ by rank and iteration, in a fresh tensor that autograd keeps without a copy."""
        return self._values[:elements] * (1.0 + 0.001 * (self.iteration % 100))


class _Block(nn.Module):
    """One layer: a flat parameter (or none) and its share of the time."""

    def __init__(self, owner: Emulated, name: str, *, elements: int, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements)) if elements else None
        self._cost = _Cost(owner=(owner,), name=name, seconds=seconds)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Op.apply(x, self.weight, self._cost)  # type: ignore[no-untyped-call]
        return result


@dataclass(frozen=True, slots=True)
class _Cost:
    owner: tuple[Emulated]  # in a tuple: a module as attribute would be registered as a child of its own child
    name: str
    seconds: float

    def run(self, direction: str, share: float, work: Callable[[], Tensor]) -> Tensor:
        owner = self.owner[0]
        return owner.accelerator.run(f"{self.name}/{direction}", self.seconds * share, work, owner.record)


class _Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, cost: _Cost) -> Tensor:
        ctx.cost, ctx.elements = cost, None if weight is None else weight.numel()
        # The read comes first: whoever makes it wait for the parameter does so before the op starts, not within.
        value = x.clone() if weight is None else x + weight[:1]
        return cost.run("forward", FORWARD_SHARE, lambda: value)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, Tensor | None, None]:
        cost, elements = ctx.cost, ctx.elements
        owner = cost.owner[0]
        work = (lambda: outputs[0]) if elements is None else (lambda: owner.gradient(elements))
        gradient = cost.run("backward", 1 - FORWARD_SHARE, work)
        return outputs[0], None if elements is None else gradient, None
