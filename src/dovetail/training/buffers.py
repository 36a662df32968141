"""One rank's tensors on every rank: weights at the start, buffers before every training forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

_BATCH = 32 * 2**20  # bytes that travel as one broadcast


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
