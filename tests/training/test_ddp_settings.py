"""What a DDP model was told about its buffers and parameters holds under distribute(), or is refused in one line."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import ranks
from networks import Side, build, run_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dovetail.errors import DovetailError
from dovetail.training import distribute, join, shutdown

IGNORED = "_ddp_params_and_buffers_to_ignore"
warnings.filterwarnings("ignore", message=".*broadcast_buffers.* is deprecated")


def _own_statistics(model: nn.Module) -> nn.Module:
    model.body[1].running_mean += 1 + dist.get_rank()  # type: ignore[index, operator]
    return model


def _sgd(model: nn.Module, *without: str) -> torch.optim.Optimizer:
    params = [param for name, param in model.named_parameters() if name.removeprefix("module.") not in without]
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def _everything(model: nn.Module) -> dict[str, torch.Tensor]:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: tensor.clone() for name, tensor in inner.state_dict().items()}


def _trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> dict[str, torch.Tensor]:
    side = Side(model, model, optimizer, lambda: None, "cnn")  # type: ignore[arg-type, return-value]
    for i in range(steps):
        side.step(i)
    return _everything(model)


def _equal(wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    """On every rank, buffers included."""
    assert wanted.keys() == found.keys()
    different = [name for name in wanted if not torch.equal(wanted[name], found[name])]
    assert not different, different


def _differs_between_ranks(tensor: torch.Tensor) -> bool:
    both = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(both, tensor)
    return not torch.equal(*both)


def buffers_of_each_rank() -> None:
    for said in ({"broadcast_buffers": False}, {"forward_sync_buffers": False}):
        reference = DistributedDataParallel(_own_statistics(build("cnn", 0)), **said)  # type: ignore[arg-type]
        wanted = _trained(reference, _sgd(reference))
        assert _differs_between_ranks(wanted["body.1.running_mean"])
        handed = DistributedDataParallel(_own_statistics(build("cnn", 0)), **said)  # type: ignore[arg-type]
        _equal(wanted, _trained(handed, distribute(handed, _sgd(handed))))
        shutdown(handed)
    bare = _own_statistics(build("cnn", dist.get_rank()))
    reference = DistributedDataParallel(_own_statistics(build("cnn", 0)), broadcast_buffers=False)
    wanted = _trained(reference, _sgd(reference))
    _equal(wanted, _trained(bare, distribute(bare, _sgd(bare), broadcast_buffers=False)))
    shutdown(bare)


def buffers_of_each_rank_with_uneven_inputs() -> None:
    steps = 2 + dist.get_rank()
    reference = DistributedDataParallel(_own_statistics(build("cnn", 0)), broadcast_buffers=False)
    with reference.join():
        _trained(reference, _sgd(reference), steps)
    handed = DistributedDataParallel(_own_statistics(build("cnn", 0)), broadcast_buffers=False)
    optimizer = distribute(handed, _sgd(handed))
    with join(handed):
        _trained(handed, optimizer, steps)
    _equal(_everything(reference), _everything(handed))
    shutdown(handed)


def what_ddp_ignores() -> None:
    """A buffer and a parameter of each rank's own, the parameter with an optimizer of its own."""

    def trained(wrap: Any) -> dict[str, torch.Tensor]:
        model = _own_statistics(build("cnn", 0))
        setattr(model, IGNORED, ["body.1.running_mean", "head.bias"])
        with torch.no_grad():
            model.head.bias += dist.get_rank()  # type: ignore[operator, union-attr]
        own = torch.optim.SGD([model.head.bias], lr=0.1)  # type: ignore[list-item, union-attr]
        called, optimizer = wrap(model, _sgd(model, "head.bias"))
        side = Side(called, model, optimizer, lambda: None, "cnn")  # type: ignore[arg-type, return-value]
        for i in range(3):
            side.step(i)
            own.step()
            own.zero_grad()
        return _everything(model)

    wanted = trained(lambda model, optimizer: (DistributedDataParallel(model), optimizer))
    assert _differs_between_ranks(wanted["head.bias"])
    assert _differs_between_ranks(wanted["body.1.running_mean"])

    def handed(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        wrapped = DistributedDataParallel(model)
        return wrapped, distribute(wrapped, optimizer)

    _equal(wanted, trained(handed))
    _equal(wanted, trained(lambda model, optimizer: (model, distribute(model, optimizer))))


def settings_that_are_refused() -> None:
    def refused(model: nn.Module, words: str, **options: Any) -> None:
        with pytest.raises(DovetailError, match=words) as caught:
            distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
        assert "\n" not in str(caught.value)

    model = build("cnn", 0)
    setattr(model, IGNORED, ["head.bias"])
    refused(DistributedDataParallel(model), r"parameter 'module\.head\.bias' is one that DDP was told to ignore")
    hooked = DistributedDataParallel(build("cnn", 0))
    hooked._register_buffer_comm_hook(None, lambda state, buffers: None)
    refused(hooked, "hook for its buffers")
    inner: Any = build("cnn", 0)
    delayed = DistributedDataParallel(
        inner,
        delay_all_reduce_named_params=[("head.bias", inner.head.bias)],
        param_to_hook_all_reduce=inner.body[0].weight,
    )
    refused(delayed, "delay_all_reduce_named_params")
    refused(nn.Sequential(DistributedDataParallel(build("cnn", 0))), "part '0' is a DDP model")
    one_of_two = {"broadcast_buffers": bool(dist.get_rank())}
    refused(build("cnn", 0), "rank 0 has broadcast_buffers=False, rank 1 has broadcast_buffers=True", **one_of_two)
    second = build("cnn", 0)
    distribute(second, torch.optim.SGD(second.body.parameters(), lr=0.1))  # type: ignore[union-attr]
    with pytest.raises(DovetailError, match="broadcast_buffers=False differs from what the model's first"):
        distribute(second, torch.optim.SGD(second.head.parameters(), lr=0.1), broadcast_buffers=False)  # type: ignore[union-attr]
    shutdown(second)


def a_setting_that_only_one_rank_has_wrong() -> None:
    model = build("cnn", 0)
    wrong = {"engine": "nccl" if dist.get_rank() else "native"}
    with pytest.raises(DovetailError, match="'nccl'") as caught:
        distribute(model, _sgd(model), **wrong)  # type: ignore[arg-type]
    assert str(caught.value).startswith("rank 1 could not start: ") == (dist.get_rank() == 0)


def weights_outside_the_model_with_uneven_inputs() -> None:
    """A loss that has weights of its own, in the model's optimizer."""
    model, loss = build("mlp", 0), nn.Linear(3, 3)
    optimizer = distribute(model, torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.01))
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    with join(model):
        for _ in range(1 + 3 * dist.get_rank()):
            optimizer.zero_grad()
            loss(model(x)).square().mean().backward()
            optimizer.step()
    shutdown(model)
    assert not any(_differs_between_ranks(param.detach()) for param in (*loss.parameters(), *model.parameters()))


SCENARIOS = [
    buffers_of_each_rank, buffers_of_each_rank_with_uneven_inputs, what_ddp_ignores, settings_that_are_refused,
    a_setting_that_only_one_rank_has_wrong, weights_outside_the_model_with_uneven_inputs,
]  # fmt: skip


def run(rank: int, size: int) -> dict[str, str]:
    return run_all(SCENARIOS)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    with ranks(2, run, gloo=True) as group:
        return group.results(60)


@pytest.mark.parametrize("name", [function.__name__ for function in SCENARIOS])
def test_setting(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert not outcome[name], f"rank {rank}:\n{outcome[name]}"
