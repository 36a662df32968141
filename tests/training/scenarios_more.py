"""Other optimizers, hooks, scalers and odd models, each as under DDP. Run on two ranks by test_semantics.py."""

from __future__ import annotations

import copy
from typing import Any

import networks
import pytest
import torch
import torch.distributed as dist
from networks import OPTIMIZERS, Side, both, ddp, distribute, dovetailed, in_flight, same, same_state
from scenarios_loop import SLOW
from scenarios_state import _refused
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

from dovetail.errors import BadInput, Misuse
from dovetail.training import shutdown


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def closures_and_whole_optimizers() -> None:
    def loop(side: Side) -> list[float]:
        def closure() -> torch.Tensor:
            side.optimizer.zero_grad()
            loss = side.loss(0)
            loss.backward()
            return loss

        return [float(side.optimizer.step(closure)) for _ in range(3)]

    class Mine(torch.optim.SGD):
        """A class that dovetail does not know."""

    both(loop, _sgd, update="worker")
    both(loop, lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3), update="worker")
    both(lambda side: [side.step(i) for i in range(3)], lambda m: Mine(m.parameters(), lr=0.1, momentum=0.5))


def _three_steps(side: Side) -> list[float]:
    return [side.step(i) for i in range(3)]


def every_optimizer_of_torch() -> None:
    """All but LBFGS, which needs a closure (above), and SparseAdam, which needs sparse gradients (below)."""
    others = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
    kinds: list[Any] = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and kind not in others]
    assert {torch.optim.SGD, torch.optim.Adafactor, torch.optim.Rprop} <= set(kinds)
    for kind in kinds:
        matrices = kind.__name__ == "Muon"  # it takes no others

        def make(model: nn.Module, kind: Any = kind, matrices: bool = matrices) -> torch.optim.Optimizer:
            return kind([p for p in model.parameters() if p.ndim == 2 or not matrices], lr=0.01)

        both(_three_steps, make)
    both(_three_steps, lambda m: torch.optim.AdamW(m.parameters(), fused=True))
    both(_three_steps, lambda m: torch.optim.Adam(m.parameters(), foreach=True))


def sparse_adam_is_refused() -> None:
    """With sparse gradients by dovetail, with dense ones by torch."""
    for sparse, kind, word in ((True, Misuse, "sparse=False"), (False, RuntimeError, "does not support dense")):
        model = nn.Embedding(5, 3, sparse=sparse)
        optimizer = torch.optim.SparseAdam(model.parameters())
        distribute(model, optimizer)

        def step(model: Any = model, optimizer: Any = optimizer) -> None:
            model(torch.tensor([1])).sum().backward()
            optimizer.step()

        with pytest.raises(kind, match=word):
            step()
        shutdown(model)


def distributing_twice_is_refused() -> None:
    """As when a notebook's cell is run again; the first call's training goes on."""

    def loop(side: Side) -> list[float]:
        for optimizer in (side.optimizer, _sgd(side.model)):
            if side.dovetail:
                _refused(BadInput, "shutdown", lambda o=optimizer: distribute(side.model, o))  # type: ignore[misc]
        return _three_steps(side)

    both(loop, _sgd)


def parameters_without_plain_memory_are_refused() -> None:
    """A tensor that holds its values in others has no memory to send; without this line it would not be trained."""
    mesh = init_device_mesh("cpu", (2,))
    matrix = torch.eye(4)
    for parameter, word in (
        (distribute_tensor(matrix, mesh, [Shard(0)]), "DTensor"),
        (TwoTensor(matrix, matrix), "TwoTensor"),
        (matrix.to_sparse(), "sparse_coo"),
        (matrix.to("meta"), "no values yet"),
        (nn.UninitializedParameter(), "no values yet"),
        (matrix.to(torch.complex64), "complex64"),
    ):
        model = nn.Linear(4, 4, bias=False)
        model.weight = parameter if isinstance(parameter, nn.Parameter) else nn.Parameter(parameter)
        _refused(BadInput, word, lambda model=model: distribute(model, _sgd(model)))  # type: ignore[misc]


def step_hooks_fire_once() -> None:
    """They may change hyperparameters, and gradients where these are the means."""

    def loop(side: Side) -> list[Any]:
        calls: list[Any] = []

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            optimizer.param_groups[0]["lr"] *= 0.5
            side.model.last.weight.grad.mul_(2)  # type: ignore[union-attr, operator]
            calls.append(("before", side.model.last.bias.grad.sum().item()))  # type: ignore[union-attr]

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            with torch.no_grad():
                side.model.first.weight.mul_(0.9)  # type: ignore[operator]
            calls.append(("after", side.model.last.bias.sum().item()))  # type: ignore[operator]

        side.optimizer.register_step_pre_hook(before)
        side.optimizer.register_step_post_hook(after)
        for i in range(3):
            calls.append(side.step(i))
        side.model.state_dict()
        return calls

    both(loop, _sgd, update="worker", **SLOW)


def gradient_scaler() -> None:
    def loop(side: Side) -> list[float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        scales = []
        for i in range(4):
            side.optimizer.zero_grad()
            loss = side.loss(i)
            if i == 1 and dist.get_rank() == 1:
                loss = loss * float("inf")  # one rank overflows: both must skip
            scaler.scale(loss).backward()
            scaler.step(side.optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    both(loop, _sgd, update="worker", **SLOW)
    for fused in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad):  # they unscale and skip by themselves
        both(loop, lambda m, kind=fused: kind(m.parameters(), lr=0.05, fused=True), **SLOW)  # type: ignore[misc]


def _share_gradients(side: Side) -> None:
    """Where nobody calls the root module DDP sends nothing, so that its means are made here."""
    if not side.dovetail:
        for p in side.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2  # type: ignore[operator]


def checkpointed_layers() -> None:
    from torch.utils.checkpoint import checkpoint

    def loop(side: Side) -> list[float]:
        losses = []
        model: Any = side.model
        for i in range(3):
            side.optimizer.zero_grad()
            x = torch.ones(2, 8) * (i + dist.get_rank())
            hidden = checkpoint(lambda v: torch.relu(model.first(v)), x, use_reentrant=False)
            loss = model.last(torch.relu(model.middle(hidden))).square().mean()
            loss.backward()
            _share_gradients(side)
            losses.append(loss.item())
            side.optimizer.step()
        return losses

    both(loop, _sgd, **SLOW)


def models_called_in_pieces() -> None:
    """Nobody calls the root module: functional uses and single layers are guarded all the same."""

    def loop(side: Side) -> list[float]:
        model: Any = side.model
        seen = []
        for i in range(3):
            side.optimizer.zero_grad()
            x = torch.ones(2, 8) * (i + 1 + dist.get_rank())
            y = nn.functional.linear(torch.relu(model.first(x)), model.middle.weight) @ model.last.weight.t()
            loss = y.square().mean() + model.middle.bias.sum() + model.last.bias.sum()
            loss.backward()
            _share_gradients(side)
            side.optimizer.step()
            seen.append(loss.item())
        return seen

    both(loop, _sgd, **SLOW)


class _ReadsMemory(torch.autograd.Function):
    """As a C++ kernel does: no torch function sees the read."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, memory: Any) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.tensor(memory.copy())

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        return None, (outputs[0] * ctx.saved_tensors[0]).sum(0), None


def functions_that_read_memory() -> None:
    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))
            self.last = nn.Linear(8, 3)
            self.memory: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.memory is None:
                self.memory = self.weight.detach().numpy()
            return self.last(_ReadsMemory.apply(x, self.weight, self.memory))

    networks.NETWORKS["kernel"] = Kernel

    def loop(side: Side) -> list[float]:
        side.network = "mlp"
        return [side.step(i) for i in range(4)]

    both(loop, _sgd, network="kernel", **SLOW)
    assert "guard" not in torch.autograd.Function.apply.__func__.__module__  # type: ignore[attr-defined]


def copies_train_alone() -> None:
    """Copies go on by themselves with the state they were copied in; the original stays as it is, and distributed."""
    reference, side = ddp("mlp", _sgd), dovetailed("mlp", _sgd, **SLOW)
    copies: list[Side] = []
    for one in (reference, side):
        one.step(0)
        assert not one.dovetail or in_flight(one) > 0
        model, optimizer = copy.deepcopy((one.model, one.optimizer))
        copies.append(Side(model, model, optimizer, one.no_sync))
    if dist.get_rank() == 0:  # no other rank takes part
        wanted, found = ([alone.step(i) for i in range(1, 4)] for alone in copies)
        assert wanted == found
        same(copies[0].model.state_dict(), copies[1].model.state_dict())
        same_state(copies[0].optimizer, copies[1].optimizer)
        assert not torch.equal(copies[1].model.middle.weight, side.model.middle.weight)
    same(reference.model.state_dict(), side.model.state_dict())
    assert reference.step(1) == side.step(1)
    same(reference.model.state_dict(), side.model.state_dict())
    same_state(reference.optimizer, side.optimizer)
    shutdown(side.model)


ALL = networks.scenarios(globals())
