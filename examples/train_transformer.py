"""A small transformer with tied embeddings: accumulation, clipping, a checkpoint and a timeline.

Run: torchrun --standalone --nproc-per-node 2 examples/train_transformer.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

import dovetail
from dovetail import codec

WORDS, LENGTH, WIDTH = 32, 12, 48


class Repeater(nn.Module):
    """An encoder whose output layer shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.embed.weight, std=WIDTH**-0.5)
        self.out.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.encoder(self.embed(words) + self.place))


def loss_of(model: nn.Module, source: torch.Generator) -> torch.Tensor:
    """Each position must name the word before it, the first one the last."""
    words = torch.randint(WORDS, (16, LENGTH), generator=source)
    return nn.functional.cross_entropy(model(words).flatten(0, 1), words.roll(1, 1).flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--timeline", help="save what rank 0 saw of all ranks here; `dovetail report` draws it")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Repeater()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # Clipping needs the mean before the step, so the update must not run at a hub.
    dovetail.distribute(model, optimizer, update="worker", trace=arguments.timeline is not None)

    source = torch.Generator().manual_seed(rank)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        with dovetail.no_sync(model):
            (loss_of(model, source) / 2).backward()  # stays here
        loss = loss_of(model, source) / 2
        loss.backward()  # sends the sum of both
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step:3d}  loss {2 * loss.item():.4f}", flush=True)

    # Any moment is a good moment: both calls wait for what is still on its way.
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    Repeater().load_state_dict(checkpoint["model"])
    if arguments.timeline is not None:
        found = dovetail.gather_timeline(model)
        if found is not None:
            codec.save(found, arguments.timeline)
    if rank == 0:
        print(f"final loss {2 * loss.item():.4f}", flush=True)
    dovetail.shutdown(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
