"""Other processes that a script makes: a DataLoader's workers, copies of the rank that have no engine."""

from __future__ import annotations

import networks
import torch
from networks import OPTIMIZERS, Side, both, in_flight
from scenarios_loop import SLOW
from torch import nn
from torch.utils.data import DataLoader, Dataset


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


class _Prepared(Dataset[torch.Tensor]):
    """Samples made by torch functions, of tensors without memory, too, and by the model as it was when forked."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.eye(8).to_sparse()[index].to_dense() + 0.5
        assert torch.isfinite(self._model(x)).all()
        assert all(torch.isfinite(p.detach() + 0).all() for p in self._model.parameters())
        return x


def data_loaders_with_workers() -> None:
    def loop(side: Side) -> list[float]:
        side.step(0)
        losses = []
        for _ in range(2):
            assert not side.dovetail or in_flight(side) > 0
            for x in DataLoader(_Prepared(side.model), batch_size=4, num_workers=2, timeout=20):
                side.optimizer.zero_grad()
                loss = side.call(x).square().mean()
                loss.backward()
                side.optimizer.step()
                losses.append(loss.item())
        return losses

    both(loop, _sgd, network="mlp", update="worker", **SLOW)
    both(loop, _sgd, network="mlp", update="hub", **SLOW)


ALL = networks.scenarios(globals())
