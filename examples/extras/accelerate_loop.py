"""Accelerate: it prepares the loader, the optimizer and the model (all but DDP), dovetail moves the gradients.

Needs `pip install 'dovetail[accelerate]'`.
Run: torchrun --standalone --nproc-per-node 2 examples/extras/accelerate_loop.py
"""

from __future__ import annotations

from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dovetail

EPOCHS = 2


def main(*, ddp: bool = False) -> nn.Module:
    set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    points = torch.rand(4096, 2) * 2 - 1
    sides = (points[:, 1] > torch.sin(3 * points[:, 0])).long()
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(points, sides), batch_size=64, shuffle=True)

    optimizer, loader = accelerator.prepare(optimizer, loader)
    model = accelerator.prepare_model(model, evaluation_mode=not ddp)  # "evaluation": placed, but not wrapped in DDP
    if not ddp:
        dovetail.distribute(model, optimizer.optimizer)
        model.no_sync = partial(dovetail.no_sync, model)  # where accelerator.accumulate() looks for it

    losses = []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    accelerator.print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    if not ddp:
        dovetail.shutdown(model)
    return model


if __name__ == "__main__":
    main()
