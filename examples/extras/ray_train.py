"""Ray Train's TorchTrainer on a local cluster: inside the loop it is an ordinary script. Needs 'dovetail[ray]'.

Run: python examples/extras/ray_train.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

import dovetail


def loop(config: dict[str, Any]) -> None:
    """What every worker runs; Ray has set up torch's process group."""
    torch.manual_seed(1)
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    dovetail.distribute(model, optimizer)  # in place of ray.train.torch.prepare_model
    source = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(config["steps"]):
        points = torch.rand(64, 2, generator=source) * 2 - 1
        sides = (points[:, 1] > torch.sin(3 * points[:, 0])).long()
        loss = nn.functional.cross_entropy(model(points), sides)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weight = sum(float(p.detach().double().sum()) for p in model.parameters())
    stats = dovetail.stats(model)
    dovetail.shutdown(model)
    figures = {"first": losses[0], "last": losses[-1], "weight": weight, "sent": sum(stats.sent.values())}
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            torch.save(model.state_dict(), Path(folder, "model.pt"))
        ray.train.report(figures, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


def main(steps: int = 60) -> dict[str, float]:
    ray.init(num_cpus=3, include_dashboard=False, logging_level="warning", log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = TorchTrainer(
                loop,
                train_loop_config={"steps": steps},
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=folder),
            )
            figures: dict[str, float] = trainer.fit().metrics
    finally:
        ray.shutdown()
    print(f"loss {figures['first']:.3f} -> {figures['last']:.3f}, {figures['sent']:.0f} bytes sent", flush=True)
    return figures


if __name__ == "__main__":
    main()
