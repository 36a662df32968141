"""A worker dies, torchrun starts all of them again, and training goes on from the last checkpoint by itself.

Run: torchrun --standalone --nproc-per-node 2 --max-restarts 2 examples/elastic.py --checkpoint last.pt --kill-at 25
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import dovetail


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's data of a step: a step that is run again after a restart sees the same."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 16, generator=source)
    return x, x.square().sum(1, keepdim=True)


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A death in the middle of it leaves the file before in place."""
    partial = path.with_suffix(".partial")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--kill-at", type=int, help="the last rank dies in this step, once")
    parser.add_argument("--losses", type=Path, help="every step's loss on rank 0 is added to this file")
    arguments = parser.parse_args()

    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    # torchrun keeps its store over a restart, and in it the addresses of the dead: each attempt has keys of its own.
    store, rank, world = next(dist.rendezvous("env://"))
    dist.init_process_group("gloo", store=dist.PrefixStore(f"attempt {attempt}", store), rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    dovetail.distribute(model, optimizer)

    begin = 0
    if arguments.checkpoint.exists():  # written by an attempt before, or by a job of yesterday
        state = torch.load(arguments.checkpoint)
        begin = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if rank == 0:
            print(f"attempt {attempt}: goes on at step {begin}", flush=True)

    for step in range(begin, arguments.steps):
        if step == arguments.kill_at and attempt == 0 and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if rank == 0 and arguments.losses:
            with arguments.losses.open("a") as file:
                file.write(f"{step} {loss.item()!r}\n")
        if rank == 0 and (step + 1) % arguments.every == 0:
            save(arguments.checkpoint, step + 1, model, optimizer)
    if rank == 0:
        print(f"final loss {loss.item():.6f}", flush=True)
    dovetail.shutdown(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
