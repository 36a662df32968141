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

    def obey(order: SumOrder) -> SumReply:
        if order.aggregation == GLOO:
            return _repeat(order, _gloo)
        options = Options(rate=post.rate, groups=post.groups)
        summed = Summed([order.nbytes], [0], aggregation=order.aggregation, hubs=post.hubs, options=options)
        with summed.session:
            reply = _repeat(order, lambda _: summed.all())
            dist.barrier()  # nobody leaves while another still waits for its share
        return reply

    return SumReply(), obey


def _gloo(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor.div_(dist.get_world_size())


def _repeat(order: SumOrder, once: Callable[[torch.Tensor], torch.Tensor]) -> SumReply:
    tensor = torch.full((order.nbytes // 4,), 1.0 + dist.get_rank())
    dist.barrier()
    seconds = []
    for _ in range(WARMUP + order.times):
        begun = time.monotonic()
        result = once(tensor)
        seconds.append(time.monotonic() - begun)
    mean = (1 + dist.get_world_size()) / 2
    if not torch.allclose(result, torch.full_like(result, mean)):
        raise DovetailError(f"the mean over ranks is {result[0].item()}, but {mean} was expected")
    return SumReply(seconds=tuple(seconds[WARMUP:]))


if __name__ == "__main__":
    serve(SumPost, SumOrder, start)
