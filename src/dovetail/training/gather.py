"""Timelines of all ranks on one clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dovetail.timeline import Timeline
from dovetail.training.record import merge
from dovetail.training.wires import carried_on

_PINGS = 8


def gather(line: Timeline) -> Timeline | None:
    """Merge all ranks' timelines on rank 0's clock; None on the other ranks."""
    offset = _offset()
    zero = float(line.notes[0].removeprefix("zero ")) + offset
    rank, world = dist.get_rank(), dist.get_world_size()
    found: list[Any] | None = [None] * world if rank == 0 else None
    dist.gather_object((line, zero), found, dst=0)
    if found is None:
        return None
    return merge([one for one, _ in found], [instant for _, instant in found])


def _offset() -> float:
    """Seconds to add to our monotonic clock to get rank 0's: 0 on one machine, else from the fastest of some pings."""
    rank, world = dist.get_rank(), dist.get_world_size()
    boots: list[Any] = [None] * world
    dist.all_gather_object(boots, _boot())
    offset = 0.0
    for other in range(1, world):
        if boots[other] and boots[other] == boots[0]:
            continue
        if rank == 0:
            for _ in range(_PINGS):
                dist.recv(_number(), src=other)
                dist.send(_number(time.monotonic()), dst=other)
        elif rank == other:
            offset = min(_ping() for _ in range(_PINGS))[1]
    return offset


def _ping() -> tuple[float, float]:
    """Round trip to rank 0, and the offset it suggests."""
    theirs = _number()
    sent = time.monotonic()
    dist.send(_number(), dst=0)
    dist.recv(theirs, src=0)
    back = time.monotonic()
    return back - sent, theirs.item() - (sent + back) / 2


def _number(value: float = 0.0) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64, device=carried_on())


def _boot() -> str:
    """Identifies the running kernel, whose monotonic clock all its processes share."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""
