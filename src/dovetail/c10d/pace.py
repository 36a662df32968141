"""What the collectives of a process group cost, measured on the group itself; all ranks call it together."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from dovetail.c10d.line import DEPTH, Line

SMALL, LARGE = 1 << 10, 1 << 20  # bytes of a tensor
COUNT = 6  # collectives after one another
TIMES = 3  # other things only make a measurement longer: the shortest counts


def measure_line(device: torch.device) -> Line:
    """Startup and speed of the default group's all-reduce, as this rank sees them."""
    short, long = (min(_seconds(size, device) for _ in range(TIMES)) for size in (SMALL, LARGE))
    return Line(startup=short, rate=2 * LARGE / long)


def _seconds(nbytes: int, device: torch.device) -> float:
    """Of one all-reduce where as many are under way as in training."""
    tensors = [torch.zeros(nbytes // 4, device=device) for _ in range(DEPTH)]
    _finish([dist.all_reduce(tensors[0], async_op=True)], device)  # nobody is late
    begun = time.monotonic()
    works: list[dist.Work | None] = []
    for number in range(COUNT):
        if len(works) == DEPTH:
            _finish([works.pop(0)], device)
        works.append(dist.all_reduce(tensors[number % DEPTH], async_op=True))
    _finish(works, device)
    return (time.monotonic() - begun) / COUNT


def _finish(works: list[dist.Work | None], device: torch.device) -> None:
    for work in works:
        assert work is not None  # only a rank outside the group gets none
        work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # there, waiting only orders streams
