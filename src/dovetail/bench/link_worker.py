"""One of two ranks between which the link is measured that predictions start from."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch.distributed as dist

from dovetail.bench.orders import LinkOrder, LinkPost, LinkReply
from dovetail.bench.serve import serve
from dovetail.network.measure import measure_pairs, route_address


def start(post: LinkPost) -> tuple[LinkReply, Callable[[LinkOrder], LinkReply]]:
    """Ready, and what obeys orders."""

    def obey(order: LinkOrder) -> LinkReply:
        pairs = measure_pairs(
            dist.distributed_c10d.PrefixStore("link", dist.distributed_c10d._get_default_store()),
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            host=route_address(os.environ["MASTER_ADDR"], 1),
        )
        return LinkReply(link=pairs[0].link, error=pairs[0].error)

    return LinkReply(), obey


if __name__ == "__main__":
    serve(LinkPost, LinkOrder, start)
