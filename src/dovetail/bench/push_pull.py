"""One tensor summed over all ranks, by whichever system: what `bench allreduce` and `bench urgent` are made of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from dovetail.engine.session import Options, Session
from dovetail.engine.table import TensorSpec
from dovetail.plan.schedule import CHUNK_BYTES, REDUCE, Plan, Transfer, bulk_chunk_bytes
from dovetail.trace.graph import Param

PATIENCE = 120.0  # seconds for one sum
_sessions = itertools.count()  # of this process; all ranks open theirs in the same order


class Summed:
    """Tensors that travel by a session of their own; `priorities` order them, the smaller first."""

    def __init__(
        self,
        sizes: Sequence[int],
        priorities: Sequence[int],
        *,
        aggregation: str,
        hubs: Sequence[str] = (),
        options: Options,
    ) -> None:
        self.tensors = [torch.full((size // 4,), 1.0 + dist.get_rank()) for size in sizes]
        names = [f"tensor {i}" for i in range(len(sizes))]
        plan = Plan(
            policy="push_pull",
            params=tuple(Param(name, t.nbytes) for name, t in zip(names, self.tensors, strict=True)),
            transfers=tuple(
                Transfer(REDUCE, ((name, 0, t.nbytes),), priority)
                for name, t, priority in zip(names, self.tensors, priorities, strict=True)
            ),
            aggregation=aggregation,
            chunk_bytes=CHUNK_BYTES
            if len(set(priorities)) > 1
            else bulk_chunk_bytes(aggregation, sum(sizes), dist.get_world_size()),
        )
        self.session = Session.open(
            store=dist.distributed_c10d._get_default_store(),
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            plan=plan,
            tensors=[TensorSpec(name, t.nbytes) for name, t in zip(names, self.tensors, strict=True)],
            hubs=hubs,
            options=options,
            namespace=f"bench-{aggregation}-{next(_sessions)}",
        )
        self._iteration = 0

    def begin(self) -> None:
        """A new round."""
        self._iteration += 1
        self.session.begin(self._iteration)
        self.session.release(self._iteration)

    def submit(self, index: int, *, more: bool = False) -> None:
        """This rank's part of a tensor may travel; `more`: others follow, or a wait."""
        self.session.submit(index, self._iteration, self.tensors[index].data_ptr(), more)

    def end(self) -> None:
        """All of the round's tensors are submitted."""
        self.session.backward_done(self._iteration)

    def wait(self, indices: Sequence[int]) -> None:
        """Until the tensors hold the mean over all ranks."""
        if not self.session.wait(indices, self._iteration, timeout=PATIENCE):
            raise TimeoutError(f"tensors {list(indices)} did not arrive within {PATIENCE} s")

    def all(self) -> None:
        """Everything at once, and wait."""
        self.begin()
        for index in range(len(self.tensors)):
            self.submit(index, more=True)
        self.wait(range(len(self.tensors)))
