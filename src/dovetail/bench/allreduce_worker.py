"""One rank of `bench allreduce`: sums one tensor again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from dovetail.bench.orders import GLOO, SumOrder, SumPost, SumReply
from dovetail.bench.push_pull import Summed
from dovetail.bench.serve import serve
from dovetail.engine.session import Options
from dovetail.errors import DovetailError

WARMUP = 2  # sums that do not count


def start(post: SumPost) -> tuple[SumReply, Callable[[SumOrder], SumReply]]:
    """Ready, and what obeys orders."""

    world = dist.get_world_size()
    mean = (1 + world) / 2

    def obey(order: SumOrder) -> SumReply:
        if order.aggregation == GLOO:  # the sum alone: a division would be another way through memory
            tensor = torch.empty(order.nbytes // 4)
            return _repeat(order, tensor, lambda: dist.all_reduce(tensor), expected=mean * world)
        options = Options(rate=post.rate, groups=post.groups)
        summed = Summed([order.nbytes], [0], aggregation=order.aggregation, hubs=post.hubs, options=options)
        with summed.session:
            reply = _repeat(order, summed.tensors[0], summed.all, expected=mean)
            dist.barrier()  # nobody leaves while another still waits for its share
        return reply

    return SumReply(), obey


def _repeat(order: SumOrder, tensor: torch.Tensor, once: Callable[[], None], expected: float) -> SumReply:
    dist.barrier()
    seconds = []
    for _ in range(WARMUP + order.times):
        tensor.fill_(1.0 + dist.get_rank())  # or plain sums of sums would soon be infinite
        begun = time.monotonic()
        once()
        seconds.append(time.monotonic() - begun)
    if not torch.allclose(tensor, torch.full_like(tensor, expected)):
        raise DovetailError(f"{tensor[0].item()} came back, but {expected} was expected")
    return SumReply(seconds=tuple(seconds[WARMUP:]))


if __name__ == "__main__":
    serve(SumPost, SumOrder, start)
