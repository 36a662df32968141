"""Unmodified wrappers of torch over a process group: each trains a little and returns weights and losses."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


class Net(nn.Module):
    """Small, with a buffer, and a branch that odd steps leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 64)
        self.norm = nn.BatchNorm1d(64)
        self.side = nn.Linear(64, 64)
        self.last = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        if branch:
            x = x + self.side(x)
        out: torch.Tensor = self.last(x)
        return out


def batch(rank: int, step: int, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(77 * rank + step)
    return torch.randn(count, 24, generator=generator), torch.randint(0, 5, (count,), generator=generator)


def train(model: Any, optimizer: Any, rank: int, *, steps: int = STEPS, branches: bool = False) -> list[float]:
    losses = []
    for step in range(steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        out = model(x, step % 2 == 0) if branches else model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(rank: int, *, hook: Any = None, state: Any = None, branches: bool = False, **settings: Any) -> Any:
    torch.manual_seed(rank)  # DDP itself makes them equal
    model = DistributedDataParallel(Net(), **{"bucket_cap_mb": 0.01, **settings})
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = train(model, optimizer, rank, branches=branches)
    return [losses, model.module.state_dict()]


def ddp_plain(rank: int, size: int) -> Any:
    return ddp(rank)


def ddp_bucket_view(rank: int, size: int) -> Any:
    return ddp(rank, gradient_as_bucket_view=True)


def ddp_static_graph(rank: int, size: int) -> Any:
    return ddp(rank, static_graph=True)


def ddp_unused_parameters(rank: int, size: int) -> Any:
    return ddp(rank, find_unused_parameters=True, branches=True)


def _slow_mean(group, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations and refuses strings
    return (
        dist.all_reduce(bucket.buffer().div_(2), group=group, async_op=True).get_future().then(lambda f: f.value()[0])
    )


def ddp_own_hook(rank: int, size: int) -> Any:
    return ddp(rank, hook=_slow_mean, state=dist.group.WORLD)


def ddp_compressed(rank: int, size: int) -> Any:
    return [ddp(rank, hook=hook) for hook in (default_hooks.fp16_compress_hook, default_hooks.allreduce_hook)]


def ddp_power_sgd(rank: int, size: int) -> Any:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=3)
    # One bucket: with several, this hook's chains of collectives interleave at random, and Gloo aborts.
    return ddp(rank, hook=powerSGD_hook.powerSGD_hook, state=state, bucket_cap_mb=25)


def ddp_no_sync(rank: int, size: int) -> Any:
    torch.manual_seed(rank)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        with model.no_sync():
            model(batch(rank, 10 + step)[0]).square().mean().backward()
        model(batch(rank, step)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.module.state_dict()


def ddp_uneven_inputs(rank: int, size: int) -> Any:
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(24, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        train(model, optimizer, rank, steps=2 + 2 * rank)
    return model.module.state_dict()


def zero_redundancy(rank: int, size: int) -> Any:
    torch.manual_seed(rank)
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
    losses = train(model, optimizer, rank)
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict() if rank == 0 else {}
    return [losses, model.module.state_dict(), [list(s.values()) for s in state.get("state", {}).values()]]


LAYERS = 3  # with weights


def _plain_net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def _fsdp(rank: int, mesh: Any, **settings: Any) -> tuple[nn.Module, list[float]]:
    model = _plain_net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **settings)
    fully_shard(model, mesh=mesh, **settings)
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), rank)
    return model, losses


def _whole(model: nn.Module) -> Any:
    return {name: p.full_tensor() for name, p in model.state_dict().items()}


def fsdp2(rank: int, size: int) -> Any:
    model, losses = _fsdp(rank, init_device_mesh("cpu", (size,)))
    return [losses, _whole(model)]


def fsdp2_mixed_precision(rank: int, size: int) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, losses = _fsdp(rank, init_device_mesh("cpu", (size,)), mp_policy=policy)
    return [losses, _whole(model)]


def fsdp2_replicated(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("replicate", "shard"))
    replicas: Any = mesh.get_group("replicate")
    before = getattr(replicas, "reduced", 0)
    model, losses = _fsdp(rank, mesh)
    if dist.get_backend() == "dovetail":
        assert replicas.reduced - before == STEPS * LAYERS, "replicas were not reduced by the engine"
    return [losses, _whole(model)]


def distributed_checkpoint(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (size,))
    model, _ = _fsdp(rank, mesh)
    place: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(place, src=0)
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=place[0])
    files = sorted(p.suffix for p in Path(place[0]).iterdir())
    fresh, _ = _fsdp(rank, mesh)
    state = {"model": get_model_state_dict(fresh)}
    for tensor in state["model"].values():
        tensor.zero_()
    checkpoint.load(state, checkpoint_id=place[0])
    set_model_state_dict(fresh, state["model"])
    assert all(torch.equal(a, b) for a, b in zip(_whole(model).values(), _whole(fresh).values(), strict=True))
    return [files, _whole(fresh)]


def tensor_parallel(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (size,))
    model = _plain_net()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = train(model, optimizer, 0)
    data = distribute_tensor(torch.arange(30.0).view(10, 3), mesh, [Shard(0)])
    return [losses, data.redistribute(mesh, [Replicate()]).to_local(), data.sum().full_tensor()]


BEHAVIOURS = (
    ddp_plain, ddp_bucket_view, ddp_static_graph, ddp_unused_parameters, ddp_own_hook, ddp_compressed, ddp_power_sgd,
    ddp_no_sync, ddp_uneven_inputs, zero_redundancy, fsdp2, fsdp2_mixed_precision, fsdp2_replicated,
    distributed_checkpoint, tensor_parallel,
)  # fmt: skip
