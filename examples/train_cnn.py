"""A small convolutional network with batch norm on two ranks; the only new line is dovetail.distribute().

Run: torchrun --standalone --nproc-per-node 2 examples/train_cnn.py
Over a hub: dovetail hub --bind 127.0.0.1 &  then  DOVETAIL_HUBS=127.0.0.1:7070 torchrun ... examples/train_cnn.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

import dovetail


def build() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 4)),
    )


def bars(count: int, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy 16x16 pictures of a bar, and in which quarter it stands."""
    labels = torch.randint(4, (count,), generator=source)
    pictures = 1.2 * torch.randn(count, 1, 16, 16, generator=source)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        picture[0, :, 4 * label : 4 * label + 2] += 1
    return pictures, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    optimizer = dovetail.distribute(model, optimizer)  # the one new line; the loop is unchanged

    source = torch.Generator().manual_seed(rank)  # every rank has its own data
    for step in range(arguments.steps):
        pictures, labels = bars(32, source)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)

    model.eval()
    pictures, labels = bars(256, torch.Generator().manual_seed(1000))
    with torch.no_grad():
        right = (model(pictures).argmax(1) == labels).float().mean().item()
    if rank == 0:
        print(f"accuracy {right:.1%}", flush=True)
    dovetail.shutdown(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
