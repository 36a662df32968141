"""One host of `bench rank`: probes the others, then takes the rank it is given in unmodified Gloo and sums."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dovetail.bench.orders import RankPost, RingOrder, RingReply
from dovetail.bench.serve import serve
from dovetail.errors import DovetailError
from dovetail.network.measure import route_address
from dovetail.network.probe import Effort, passes_for, probe_all

WARMUP = 1  # sums that do not count
PATIENCE = timedelta(seconds=120)


def start(post: RankPost) -> tuple[RingReply, Callable[[RingOrder], RingReply]]:
    """Ready, and what obeys orders."""
    host, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    done = 0

    def obey(order: RingOrder) -> RingReply:
        nonlocal done
        done += 1
        own = dist.distributed_c10d.PrefixStore(f"order/{done}", store)
        if order.hosts:
            return RingReply(seconds=_sums(own, order, order.hosts.index(host)))
        address = route_address(os.environ["MASTER_ADDR"], 1)
        names = [str(h) for h in range(world)]
        effort = Effort(passes=passes_for(world))
        return RingReply(matrix=probe_all(own, rank=host, hosts=names, address=address, effort=effort))

    return RingReply(), obey


def _sums(store: Any, order: RingOrder, rank: int) -> tuple[float, ...]:
    """A process group as any script makes it, with its ranks numbered as ordered."""
    world = len(order.hosts)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=PATIENCE)
    seconds = []
    for _ in range(WARMUP + order.times):
        tensor = torch.full((order.nbytes // 4,), 1.0 + rank)
        dist.barrier()
        begun = time.monotonic()
        dist.all_reduce(tensor)
        seconds.append(time.monotonic() - begun)
    if not bool((tensor == world * (world + 1) / 2).all()):
        raise DovetailError(f"the sum over ranks is {tensor[0].item()}, but {world * (world + 1) / 2} was expected")
    dist.barrier()
    dist.destroy_process_group()
    return tuple(seconds[WARMUP:])


if __name__ == "__main__":
    serve(RankPost, RingOrder, start)
