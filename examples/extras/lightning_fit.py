"""Lightning: the strategy is all that differs from an ordinary Trainer. Needs `pip install 'dovetail[lightning]'`.

Run: python examples/extras/lightning_fit.py
"""

from __future__ import annotations

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dovetail.integrations.lightning import DovetailStrategy


class Curve(L.LightningModule):
    """On which side of a curve do points lie?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 2))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        points, sides = batch
        loss = nn.functional.cross_entropy(self.net(points), sides)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(strategy: L.pytorch.strategies.Strategy | None = None, folder: str | None = None) -> Curve:
    L.seed_everything(1, verbose=False)
    points = torch.rand(4096, 2) * 2 - 1
    sides = (points[:, 1] > torch.sin(3 * points[:, 0])).long()
    model = Curve()
    trainer = L.Trainer(
        strategy=strategy or DovetailStrategy(policy="p3"),
        accelerator="cpu",
        devices=2,
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        default_root_dir=folder,
        enable_checkpointing=folder is not None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(points, sides), batch_size=64, shuffle=True))
    if trainer.is_global_zero:
        print(f"loss {model.losses[0]:.3f} -> {model.losses[-1]:.3f}", flush=True)
    return model


if __name__ == "__main__":
    main()
