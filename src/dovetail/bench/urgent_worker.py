"""One rank of `bench urgent`: rank 0 submits small tensors while a large one travels, rank 1 notes when they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from dovetail.bench.push_pull import Summed
from dovetail.bench.serve import serve

URGENT, BULK = 0, 1  # priorities


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Sizes in bytes; `rate` is kept by the engine itself where no link does."""

    large: int
    small: int
    samples: int  # small tensors in one round
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One round: the small ones go first if `urgent`, else they queue behind the large one; `gap` seconds apart."""

    urgent: bool
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Instants of the monotonic clock: rank 0's submissions, rank 1's arrivals; empty as first words."""

    instants: tuple[float, ...] = ()
    large_done: float = 0.0


def start(post: Post) -> tuple[Reply, Callable[[Order], Reply]]:
    """Ready, and what obeys orders."""
    sessions: dict[bool, Summed] = {}
    sizes = [post.large] + [post.small] * post.samples

    def obey(order: Order) -> Reply:
        if order.urgent not in sessions:
            # With one priority for all, the queue is first in, first out.
            priorities = [BULK] + [URGENT if order.urgent else BULK] * post.samples
            sessions[order.urgent] = Summed(sizes, priorities, aggregation="shuffle", hubs=(), rate=post.rate)
        return _round(sessions[order.urgent], order, post.samples)

    return Reply(), obey


def _round(summed: Summed, order: Order, samples: int) -> Reply:
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
    summed.wait([0])
    done = time.monotonic()
    summed.wait(small)
    return Reply(instants=tuple(instants), large_done=done)


if __name__ == "__main__":
    serve(Post, Order, start)
