"""Where the few numbers that ranks tell each other must lie, so that the default group can carry them."""

from __future__ import annotations

import torch
import torch.distributed as dist

_HOST = torch.device("cpu")


def carried_on() -> torch.device:
    """Host memory if the default group has a backend for it, else its accelerator: NCCL alone refuses CPU tensors."""
    devices = [torch.device(device) for device in dist.distributed_c10d._get_default_group()._device_types]
    return _HOST if _HOST in devices or not devices else devices[0]
