"""One rank's tensors on every rank: weights at the start, buffers before every training forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_LEFT_ALONE = "_ddp_params_and_buffers_to_ignore"  # where torch keeps the names of what DDP shall not touch
_BATCH = 32 * 2**20  # bytes that travel as one broadcast


class Common:
    """Which of a model's tensors are the same on all ranks: all but those that DDP would leave to each rank."""

    def __init__(self, model: torch.nn.Module, *, buffers: bool | None = None) -> None:
        wrapped = isinstance(model, DistributedDataParallel)
        inner, prefix = (model.module, "module.") if wrapped else (model, "")
        self._apart = {prefix + name for name in getattr(inner, _LEFT_ALONE, ())}
        # A DDP model says itself whether its buffers follow rank 0's.
        self.has_buffers = buffers if buffers is not None else not wrapped or bool(model.broadcast_buffers)

    def parameters(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """All that is trained, and what is frozen."""
        return [param for name, param in model.named_parameters() if not self.is_apart(name)]

    def buffers(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """Those that follow rank 0's; the model may get other buffers at any time."""
        if not self.has_buffers:
            return []
        return [buffer for name, buffer in model.named_buffers() if not self.is_apart(name)]

    def is_apart(self, name: str) -> bool:
        """Whether every rank has its own tensor of this name."""
        return name in self._apart


def broadcast(tensors: Iterable[torch.Tensor], *, source: int = 0) -> None:
    """Overwrite the tensors with those of rank `source`, a few broadcasts in all."""
    batches: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors:
            batch = batches.setdefault((tensor.dtype, tensor.device), [])
            batch.append(tensor.detach())
            if sum(t.numel() * t.element_size() for t in batch) >= _BATCH:
                _send(batch, source)
                batch.clear()
        for batch in batches.values():
            _send(batch, source)


def _send(batch: list[torch.Tensor], source: int) -> None:
    if not batch:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in batch])
    dist.broadcast(flat, src=source)
    parts = torch.split(flat, [tensor.numel() for tensor in batch])
    for tensor, part in zip(batch, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
