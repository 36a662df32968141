"""Collectives on torch tensors over dovetail's engine: `dovetail.collective.all_reduce(tensor, priority=...)`.

The engine is opened at the first call, on the default process group, by all ranks together.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dovetail.engine.collectives import Collectives, Pending
from dovetail.engine.session import Options, Session
from dovetail.engine.table import TensorSpec
from dovetail.errors import BadInput, Misuse
from dovetail.plan.opening import opening_plan
from dovetail.plan.schedule import bulk_chunk_bytes

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
SUM, MEAN = "sum", "mean"

_open: weakref.WeakKeyDictionary[Any, Collectives] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Work:
    """A collective under way; the tensors must not be touched until `wait` returns."""

    pending: Pending
    kept: tuple[torch.Tensor, ...]  # alive while the engine uses their memory

    def wait(self) -> None:
        """Return when the result is in place; PeerLost when a rank is gone."""
        self.pending.wait()

    def is_completed(self) -> bool:
        return self.pending.done()


def open_over(group: Any, *, aggregation: str = "shuffle", options: Options | None = None) -> Collectives:
    """The engine's collectives on the ranks of a process group; all of them call it together, once."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    plan = opening_plan("collectives", aggregation, chunk_bytes=bulk_chunk_bytes(aggregation))
    specs = [TensorSpec(p.name, p.nbytes) for p in plan.params]
    store = dist.distributed_c10d._get_default_store()
    name = f"collectives-{'-'.join(map(str, dist.get_process_group_ranks(group)))}-{aggregation}"
    session = Session.open(
        store=store, rank=rank, world=world, plan=plan, tensors=specs, options=options, namespace=name
    )
    return Collectives(session)


def all_reduce(tensor: torch.Tensor, *, op: str = SUM, priority: int = 0, async_op: bool = False) -> Work | None:
    """Replace `tensor` on every rank by the sum (or mean) over all ranks; a smaller priority number goes first."""
    if op not in (SUM, MEAN):
        raise BadInput(f"op {op!r} is unknown; it is 'sum' or 'mean'")
    data = _checked(tensor)
    divisor = dist.get_world_size() if op == MEAN else 1
    pending = _collectives().all_reduce(
        data.data_ptr(), data.nbytes, DTYPES[data.dtype], divisor=divisor, priority=priority, waits=not async_op
    )
    return _finish(pending, (data,), async_op)


def broadcast(tensor: torch.Tensor, *, root: int = 0, priority: int = 0, async_op: bool = False) -> Work | None:
    """Give every rank the root's values."""
    data = _checked(tensor)
    if not 0 <= root < dist.get_world_size():
        raise BadInput(f"root {root} is no rank; ranks are 0 to {dist.get_world_size() - 1}")
    pending = _collectives().broadcast(
        data.data_ptr(), data.nbytes, DTYPES[data.dtype], root=root, priority=priority, waits=not async_op
    )
    return _finish(pending, (data,), async_op)


def all_gather(output: torch.Tensor, tensor: torch.Tensor, *, priority: int = 0, async_op: bool = False) -> Work | None:
    """Fill `output` with every rank's `tensor`, in rank order; it has world size times as many elements."""
    out, data = _checked(output), _checked(tensor)
    pieces = _pieces(out, data, "all_gather")
    pieces[dist.get_rank()].copy_(data.view(-1))
    pending = _collectives().all_gather(
        [p.data_ptr() for p in pieces], data.nbytes, DTYPES[data.dtype], priority=priority, waits=not async_op
    )
    return _finish(pending, (out,), async_op)


def reduce_scatter(output: torch.Tensor, tensor: torch.Tensor, *, op: str = SUM, priority: int = 0) -> None:
    """Sum `tensor` over all ranks and keep this rank's piece of it in `output`; `tensor` is used as work space."""
    if op not in (SUM, MEAN):
        raise BadInput(f"op {op!r} is unknown; it is 'sum' or 'mean'")
    data, out = _checked(tensor), _checked(output)
    pieces = _pieces(data, out, "reduce_scatter")
    pending = _collectives().reduce_scatter(
        [p.data_ptr() for p in pieces],
        out.nbytes,
        DTYPES[out.dtype],
        divisor=dist.get_world_size() if op == MEAN else 1,
        priority=priority,
        waits=True,
    )
    pending.wait()
    out.view(-1).copy_(pieces[dist.get_rank()])


def _finish(pending: Pending, kept: tuple[torch.Tensor, ...], async_op: bool) -> Work | None:
    work = Work(pending, kept)
    if async_op:
        return work
    work.wait()
    return None


def _collectives() -> Collectives:
    if not dist.is_initialized():
        raise Misuse("dovetail.collective needs the ranks to have met; call torch.distributed.init_process_group first")
    group = dist.group.WORLD
    found = _open.get(group)
    if found is None:
        found = _open[group] = open_over(group)
    return found


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in DTYPES:
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise BadInput(f"the engine cannot sum {tensor.dtype}; it sums {known}")
    if tensor.device.type != "cpu":
        raise BadInput(f"the engine works on CPU memory, but the tensor is on {tensor.device}; move it first")
    if not tensor.is_contiguous():
        raise BadInput(f"a tensor of shape {tuple(tensor.shape)} is not contiguous; pass tensor.contiguous()")
    return tensor.detach()


def _pieces(whole: torch.Tensor, piece: torch.Tensor, call: str) -> list[torch.Tensor]:
    world = dist.get_world_size()
    if whole.numel() != world * piece.numel() or whole.dtype != piece.dtype:
        raise BadInput(
            f"{call}: {whole.numel()} elements of {whole.dtype} are not {world} times {piece.numel()} of {piece.dtype}"
        )
    return list(whole.view(world, -1).unbind()) if piece.numel() else [piece.view(-1)] * world
