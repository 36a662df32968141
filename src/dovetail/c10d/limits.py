"""How long a process group's collectives may take, and who waits for them."""

from __future__ import annotations

import ctypes
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


def never_end(group: dist.ProcessGroup) -> None:
    """Keep a group whose peer is silent: its end waits for collectives under way, and the process would, too."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
