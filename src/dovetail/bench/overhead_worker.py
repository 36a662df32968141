"""One rank of `bench overhead`: the same network twice, once alone and once distributed.

Only rank 0 has a batch that takes time. The others train on one sample, so that engines find a free core: machines of
a cluster have cores of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from dovetail.bench.orders import OverheadOrder, OverheadPost, OverheadReply
from dovetail.bench.serve import serve
from dovetail.training.distribute import distribute

WIDTH = 32  # of every layer: little to send, whatever the batch costs
TRIAL = 512  # samples of the first batch tried
TRIALS = 2  # each chooses the next batch: small ones are dear by the sample


class Trainee:
    """A network of narrow layers and its optimizer."""

    def __init__(self, params: int, *, distributed: bool) -> None:
        torch.manual_seed(1)
        layers = [module for _ in range(params // 2) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.model = nn.Sequential(*layers)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if distributed:
            distribute(self.model, self._optimizer, policy="p3", hubs=())

    def run(self, batch: torch.Tensor, steps: int) -> OverheadReply:
        """Mean times of a step, with all its updates done at the end."""
        clocks = time.monotonic, time.thread_time, time.process_time
        before = [clock() for clock in clocks]
        for _ in range(steps):
            self._optimizer.zero_grad()
            self.model(batch).square().mean().backward()
            self._optimizer.step()
        self.model.state_dict()  # complete when it returns
        wall, thread, process = ((clock() - start) / steps for clock, start in zip(clocks, before, strict=True))
        return OverheadReply(wall=wall, thread=thread, process=process)


def start(post: OverheadPost) -> tuple[OverheadReply, Callable[[OverheadOrder], OverheadReply]]:
    """What is trained, and what obeys orders."""
    trainees = {kind: Trainee(post.params, distributed=kind) for kind in (False, True)}
    samples = _samples(trainees[False], post.step) if dist.get_rank() == 0 else 1
    batch = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    weights = list(trainees[False].model.parameters())
    words = OverheadReply(params=len(weights), nbytes=sum(p.nbytes for p in weights), batch=samples)

    def obey(order: OverheadOrder) -> OverheadReply:
        dist.barrier()
        return trainees[order.distributed].run(batch, order.steps)

    return words, obey


def _samples(trainee: Trainee, step: float) -> int:
    """How many samples make a step of `step` seconds."""
    samples = TRIAL
    for _ in range(TRIALS):
        trial = torch.randn(samples, WIDTH)
        trainee.run(trial, 1)
        samples = max(1, round(samples * step / trainee.run(trial, 2).wall))
    return samples


if __name__ == "__main__":
    serve(OverheadPost, OverheadOrder, start)
