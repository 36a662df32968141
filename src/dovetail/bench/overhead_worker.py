"""One rank of `bench overhead`: the same network twice, once alone and once distributed.

Only rank 0 computes for long. The others leave it the cores, as if every rank had a machine of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dovetail.bench.orders import OverheadOrder, OverheadPost, OverheadReply
from dovetail.bench.serve import serve
from dovetail.training.distribute import distribute

WIDTH, SAMPLES = 32, 64  # of every layer: little to send
SIDE = 192  # of matrices that stay in the cache and keep a core busy for long without a call
TRIAL = 3  # products a layer in the step that shows how many make a step as long as asked


class Labour:
    """Products of matrices, and the seconds they took so far."""

    def __init__(self, products: int) -> None:
        self.products = products
        self.seconds = 0.0
        self._factor, self._product = torch.full((SIDE, SIDE), 1 / SIDE), torch.empty(SIDE, SIDE)

    def work(self, share: int) -> None:
        """A forward pass has a share of one, a backward pass of two."""
        begin = time.perf_counter()
        for _ in range(share * self.products):
            torch.mm(self._factor, self._factor, out=self._product)
        self.seconds += time.perf_counter() - begin


class Laboured(torch.autograd.Function):
    """The identity, at the price of `labour` on both passes."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, labour: Labour) -> torch.Tensor:
        ctx.labour = labour
        labour.work(1)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.labour.work(2)
        return grads[0], None


class Layer(nn.Linear):
    """A small layer that takes long."""

    def __init__(self, labour: Labour) -> None:
        super().__init__(WIDTH, WIDTH)
        self._labour = labour

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Laboured.apply(super().forward(values), self._labour)  # type: ignore[no-untyped-call]
        return result


class Trainee:
    """A network of such layers and its optimizer."""

    def __init__(self, params: int, labour: Labour, *, distributed: bool) -> None:
        torch.manual_seed(1)
        self._labour = labour
        self.model = nn.Sequential(*(Layer(labour) for _ in range(params // 2)))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if distributed:
            distribute(self.model, self._optimizer, policy="p3", hubs=())

    def run(self, batch: torch.Tensor, steps: int) -> OverheadReply:
        """Mean times of a step, with all its updates done at the end."""
        laboured, wall, cpu = self._labour.seconds, time.perf_counter(), time.process_time()
        for _ in range(steps):
            self._optimizer.zero_grad()
            self.model(batch).square().mean().backward()
            self._optimizer.step()
        self.model.state_dict()  # complete when it returns
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        beside = wall - (self._labour.seconds - laboured)
        return OverheadReply(wall=wall / steps, beside=beside / steps, cpu=cpu / steps)


def start(post: OverheadPost) -> tuple[OverheadReply, Callable[[OverheadOrder], OverheadReply]]:
    """What is trained, and what obeys orders."""
    labour = Labour(0)
    trainees = {kind: Trainee(post.params, labour, distributed=kind) for kind in (False, True)}
    batch = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    if dist.get_rank() == 0:
        labour.products = _products(trainees[False], labour, batch, post.step)
    weights = list(trainees[False].model.parameters())
    words = OverheadReply(params=len(weights), nbytes=sum(p.nbytes for p in weights))

    def obey(order: OverheadOrder) -> OverheadReply:
        dist.barrier()
        return trainees[order.distributed].run(batch, order.steps)

    return words, obey


def _products(trainee: Trainee, labour: Labour, batch: torch.Tensor, step: float) -> int:
    """How many a layer make a step of `step` seconds."""
    labour.products = TRIAL
    trainee.run(batch, 1)
    before = labour.seconds
    taken = trainee.run(batch, 2)
    return max(1, round(TRIAL * (step - taken.beside) / ((labour.seconds - before) / 2)))


if __name__ == "__main__":
    serve(OverheadPost, OverheadOrder, start)
