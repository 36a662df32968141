"""One rank of `bench allreduce` under mpirun: sums one array again and again with MPI's own all-reduce."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec
import numpy as np

from dovetail.bench.orders import SumOrder, SumReply
from dovetail.errors import DovetailError

WARMUP = 2  # sums that do not count
NAP = 0.01  # seconds between looks for an order


def main() -> None:
    """Rank 0 reads orders and tells all ranks' slowest times; the others follow."""
    from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]

    world = MPI.COMM_WORLD
    _say(world.rank, SumReply())
    while True:
        line = _next(world)
        if not line:
            return
        order = msgspec.json.decode(line, type=SumOrder)
        mine = np.full(order.nbytes // 4, 1.0 + world.rank, dtype=np.float32)
        total = np.empty_like(mine)
        world.Barrier()
        seconds = np.empty(WARMUP + order.times)
        for i in range(len(seconds)):
            begun = time.monotonic()
            world.Allreduce(mine, total)
            seconds[i] = time.monotonic() - begun
        expected = world.size * (1 + world.size) / 2
        if not np.allclose(total, expected):
            raise DovetailError(f"{total[0]} came back, but {expected} was expected")
        slowest = np.empty_like(seconds)
        world.Allreduce(seconds, slowest, op=MPI.MAX)
        _say(world.rank, SumReply(seconds=tuple(slowest[WARMUP:].tolist())))


def _next(world: Any) -> bytes:
    """The next order, on all ranks; MPI waits with busy cores, which the systems measured in between need."""
    if world.rank > 0:
        while not world.Iprobe(source=0):
            time.sleep(NAP)
        return bytes(world.recv(source=0))
    line = sys.stdin.buffer.readline()
    for rank in range(1, world.size):
        world.send(line, dest=rank)
    return line


def _say(rank: int, words: SumReply) -> None:
    if rank == 0:
        sys.stdout.buffer.write(msgspec.json.encode(words) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
