"""One rank of `bench urgent`: rank 0 submits small tensors while a large one travels, rank 1 notes when they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from dovetail.bench.orders import UrgentOrder, UrgentPost, UrgentReply
from dovetail.bench.push_pull import Summed
from dovetail.bench.serve import serve
from dovetail.engine.session import Options

URGENT, BULK = 0, 1  # priorities


def start(post: UrgentPost) -> tuple[UrgentReply, Callable[[UrgentOrder], UrgentReply]]:
    """Ready, and what obeys orders."""
    sessions: dict[bool, Summed] = {}
    sizes = [post.large] + [post.small] * post.samples

    def obey(order: UrgentOrder) -> UrgentReply:
        if order.urgent not in sessions:
            # With one priority for all, the queue is first in, first out.
            priorities = [BULK] + [URGENT if order.urgent else BULK] * post.samples
            sessions[order.urgent] = Summed(sizes, priorities, aggregation="shuffle", options=Options(rate=post.rate))
        return _round(sessions[order.urgent], order, post.samples)

    return UrgentReply(), obey


def _round(summed: Summed, order: UrgentOrder, samples: int) -> UrgentReply:
    small = range(1, samples + 1)
    dist.barrier()
    summed.begin()
    if dist.get_rank() != 0:
        for index in small:
            summed.submit(index)
    dist.barrier()  # whatever the others add is there already: one message from rank 0 completes a small tensor
    summed.submit(0)
    instants = []
    for index in small:
        if dist.get_rank() == 0:
            time.sleep(order.gap)
            instants.append(time.monotonic())
            summed.submit(index)
        else:
            summed.wait([index])
            instants.append(time.monotonic())
    summed.end()
    summed.wait([0, *small])
    return UrgentReply(instants=tuple(instants))


if __name__ == "__main__":
    serve(UrgentPost, UrgentOrder, start)
