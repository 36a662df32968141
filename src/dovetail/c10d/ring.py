"""A reduce-scatter of sends and receives around a ring, for groups whose own one sends more than it must.

Gloo's reduce-scatter is an all-reduce inside. An exchange of all with all moves the right bytes, but every rank then
hears from all others at once, which overflows the queues of a network; in a ring it hears from one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


class RingScatter:
    """Begins at once; whoever waits for it carries sums from hop to hop. The last sum is this rank's shard."""

    def __init__(
        self, group: dist.ProcessGroup, whole: torch.Tensor, shard: torch.Tensor, arrivals: torch.Tensor, *, tag: int
    ) -> None:
        self._group, self._shard, self._tag = group, shard, tag
        self._rank, self._world = group.rank(), group.size()
        self._rows = whole.view(self._world, -1)
        self._arrivals = arrivals.view(self._world - 1, -1) if self._world > 1 else arrivals
        before = (self._rank - 1) % self._world
        self._coming = [group.recv([row], before, tag) for row in self._arrivals]
        self._leaving: list[dist.Work] = []
        if self._world > 1:
            self._pass_on(self._rows[self._rank - 1])

    def wait(self) -> None:
        """Until the shard is summed and nothing of this rank's memory is still being sent."""
        last = self._world - 2
        for hop, (coming, arrival) in enumerate(zip(self._coming, self._arrivals, strict=True)):
            coming.wait()
            row = self._rows[(self._rank - hop - 2) % self._world]
            if hop == last:
                torch.add(row, arrival, out=self._shard)
            else:
                self._pass_on(row.add_(arrival))
        if self._world == 1:
            self._shard.copy_(self._rows[0])
        for leaving in self._leaving:
            leaving.wait()

    def _pass_on(self, row: torch.Tensor) -> None:
        self._leaving.append(self._group.send([row], (self._rank + 1) % self._world, self._tag))
