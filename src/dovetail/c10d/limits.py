"""How long a process group's collectives may take."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


def time_limit(device: torch.device) -> timedelta:
    """The default group's for its collectives; torch's own where the backend keeps none, as MPI's."""
    try:
        limit: timedelta = dist.distributed_c10d._get_default_group()._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return dist.distributed_c10d.default_pg_timeout
    return limit
