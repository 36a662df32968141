"""One rank of `bench autotune`: the same model under several schedules, each kept for later orders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from dovetail.bench.orders import TuneOrder, TunePost, TuneReply
from dovetail.bench.serve import serve
from dovetail.bench.worker import build
from dovetail.engine.session import Options
from dovetail.training.distribute import distribute, loads


class Trainee:
    """A model that is tuned, or whose masters' work is shared out in a fixed way."""

    def __init__(self, post: TunePost, order: TuneOrder) -> None:
        self._model, self._batch = build(post.workload, dist.get_rank())
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.001, momentum=0.9)
        distribute(
            self._model,
            self._optimizer,
            policy="p3",
            aggregation="shuffle",
            hubs=(),
            autotune=order.tuned,
            options=Options(shares=order.shares, facing=os.environ["MASTER_ADDR"]),
        )

    def run(self, steps: int) -> TuneReply:
        """The instants at which steps begin, one more than asked for; and the bytes that each rank sends.

        The last step is not timed: it also waits for what others leave to the next one.
        """
        dist.barrier()
        instants = []
        for _ in range(steps + 1):
            instants.append(time.monotonic())
            self._optimizer.zero_grad()
            self._model(*self._batch(0)[0]).sum().backward()
            self._optimizer.step()
        self._model.state_dict()  # complete when it returns
        return TuneReply(instants=tuple(instants), loads=tuple(loads(self._model)))


def start(post: TunePost) -> tuple[TuneReply, Callable[[TuneOrder], TuneReply]]:
    """Ready, and what obeys orders."""
    trainees: dict[tuple[bool, tuple[float, ...] | None], Trainee] = {}

    def obey(order: TuneOrder) -> TuneReply:
        key = (order.tuned, order.shares)
        if key not in trainees:
            trainees[key] = Trainee(post, order)
        return trainees[key].run(order.steps)

    return TuneReply(), obey


if __name__ == "__main__":
    serve(TunePost, TuneOrder, start)
