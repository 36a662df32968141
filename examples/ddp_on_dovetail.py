"""Stock DDP on dovetail's engine: the backend's name is all that differs from an ordinary script.

Run: torchrun --standalone --nproc-per-node 2 examples/ddp_on_dovetail.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dovetail.c10d  # noqa: F401  # not needed where dovetail is installed: torch finds the backend by itself

STEPS = 60


def batch(source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points, and on which side of a curve they lie."""
    points = torch.rand(64, 2, generator=source) * 2 - 1
    return points, (points[:, 1] > torch.sin(3 * points[:, 0])).long()


def main() -> None:
    dist.init_process_group("dovetail")
    rank = dist.get_rank()
    source = torch.Generator().manual_seed(rank)  # every rank sees other data
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        points, sides = batch(source)
        loss = nn.functional.cross_entropy(model(points), sides)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, STEPS - 1):
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {mean.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
