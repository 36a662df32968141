"""Uneven inputs: a rank that has run out of data answers the others' rounds until all have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from dovetail.errors import BadInput, Misuse
from dovetail.training.buffers import Common, broadcast
from dovetail.training.job import Job
from dovetail.training.wires import carried_on

_JOINED, BUFFERS, ROUND = 0, 1, 2  # votes; ROUND + i: a round of the model's optimizer number i


class Votes:
    """Before each thing that takes all ranks, all ranks say what comes, or that they have nothing left."""

    def __init__(self) -> None:
        self.active: Sequence[int] = range(dist.get_world_size())  # at the last vote that was not the last

    def cast(self, vote: int) -> int:
        """What the ranks with data do next, or 0 when there are none left."""
        with torch._C.DisableTorchFunction():
            mine = torch.tensor([vote], device=carried_on())
            found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(found, mine)
            votes = [int(said) for said in found]
        active = [rank for rank, said in enumerate(votes) if said != _JOINED]
        if not active:
            return _JOINED
        self.active = active
        other = next((rank for rank in active if votes[rank] != votes[active[0]]), None)
        if other is not None:
            raise Misuse(
                f"inside join rank {active[0]} and rank {other} do different things at once; every rank that has data "
                "runs the same forward and backward passes"
            )
        return votes[active[0]]

    @property
    def authority(self) -> int:
        """The rank whose buffers, and in the end whose weights, count: the highest that has data, as in DDP."""
        return max(self.active)


@contextlib.contextmanager
def uneven(
    model: torch.nn.Module, common: Common, jobs: Sequence[Job], optimizers: Sequence[Optimizer]
) -> Iterator[None]:
    """Inside, ranks may run different numbers of iterations; at the end all hold what the last of them has made."""
    if any(job.update.remote for job in jobs):
        raise BadInput("join needs the update at the worker; call dovetail.distribute(..., update='worker')")
    if dist.get_world_size() == 1:
        yield
        return
    votes = Votes()
    for number, job in enumerate(jobs):
        job.votes, job.vote = votes, ROUND + number
    try:
        yield
        for job in jobs:
            job.settle_all()
        while (next_up := votes.cast(_JOINED)) != _JOINED:
            if next_up == BUFFERS:
                broadcast(common.buffers(model), source=votes.authority)
            else:
                jobs[next_up - ROUND].answer()
        _share(model, common, jobs, optimizers, votes)
    finally:
        for job in jobs:
            job.votes = None


def _share(
    model: torch.nn.Module, common: Common, jobs: Sequence[Job], optimizers: Sequence[Optimizer], votes: Votes
) -> None:
    """Weights, buffers and optimizer state of a rank that went through all iterations."""
    if len(votes.active) == dist.get_world_size():
        broadcast(common.buffers(model), source=votes.authority)
        return
    trained = [slot.param for job in jobs for slot in job.slots]  # also what the model does not own
    broadcast([*dict.fromkeys([*common.parameters(model), *trained]), *common.buffers(model)], source=votes.authority)
    for optimizer in optimizers:
        state = [optimizer.state_dict()]
        dist.broadcast_object_list(state, src=votes.authority)
        if dist.get_rank() != votes.authority:
            optimizer.load_state_dict(state[0])
