"""Clipping by the global norm in two phases: the norm is known when the sums are, and results go on travelling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from dovetail.errors import BadInput, Misuse
from dovetail.training.job import Job
from dovetail.training.wires import carried_on


def clip(jobs: Sequence[Job], max_norm: float, norm_type: float, error_if_nonfinite: bool) -> torch.Tensor:
    """Scale the mean gradients so that their norm is at most `max_norm`; returns the norm before that."""
    if not max_norm >= 0:
        raise BadInput(f"max_norm={max_norm} is not a norm; give a number of 0 or more")
    if any(job.update.remote for job in jobs):
        raise Misuse(
            "clipping needs the mean before the update, but the update runs at the aggregator; use update='worker'"
        )
    for job in jobs:
        job.measuring = True
    alike = all(job.votes is None for job in jobs)  # inside join a rank without data does not come here
    squares = _shared([job.squares() for job in jobs]) if norm_type == 2.0 and alike else None
    if squares is None:  # the first time, other norms, changed gradients, dedicated hubs, join: wait for all means
        params = [slot.param for job in jobs for slot in job.slots]
        return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type, error_if_nonfinite)
    wide = any(slot.param.dtype is torch.float64 for job in jobs for slot in job.slots)
    norm = torch.tensor(math.sqrt(squares), dtype=torch.float64 if wide else torch.float32)
    if error_if_nonfinite and not math.isfinite(squares):
        raise RuntimeError(f"the norm of the gradients is {norm.item()}, so they cannot be clipped")
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for job in jobs:
        job.scale(factor)
    return norm


def _shared(found: Sequence[float | None]) -> float | None:
    """The sum over all ranks, the same bits on each; None when one of them cannot say."""
    if dist.get_world_size() == 1:
        return None
    with torch._C.DisableTorchFunction():
        known = sum(f for f in found if f is not None)
        mine = torch.tensor([float(None in found), known], dtype=torch.float64, device=carried_on())
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine)
        unknown, total = torch.stack(every).sum(0).tolist()
    return None if unknown else total
