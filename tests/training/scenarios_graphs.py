"""Models whose graphs are not the plain ones, each as under DDP. Run on two ranks by test_features.py."""

from __future__ import annotations

import warnings
from typing import Any

import networks
import pytest
import torch
import torch.distributed as dist
from networks import Side, batch, both, dovetailed, jobs
from scenarios_features import _adamw, _sgd, _stepped
from scenarios_loop import SLOW
from scenarios_state import _refused
from torch import nn
from torch.utils.checkpoint import checkpoint

from dovetail.errors import Misuse, PeerLost
from dovetail.training import shutdown

# Graphs


class _Checkpointed(networks.Mlp):
    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda v: torch.relu(self.first(v)), x.requires_grad_(), use_reentrant=self.reentrant)
        hidden = checkpoint(lambda v: torch.relu(self.middle(v)), hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


class _Reentrant(_Checkpointed):
    reentrant = True


def checkpointing_both_ways() -> None:
    networks.NETWORKS |= {"checkpointed": _Checkpointed, "reentrant": _Reentrant}

    def loop(side: Side) -> list[float]:
        side.network = "mlp"  # its data
        return [side.step(i) for i in range(4)]

    for network in ("checkpointed", "reentrant"):
        both(loop, _adamw, network=network, update="worker", **SLOW)
        both(loop, _sgd, network=network, update="hub")


def reentrant_checkpoints_of_shared_weights_are_refused() -> None:
    """DDP refuses it, too, while gradients of other layers are to come: each checkpoint completes the weight's anew."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(
                self.shared, checkpoint(self.shared, self.first(x), use_reentrant=True), use_reentrant=True
            )

    networks.NETWORKS["shared"] = Shared
    side = dovetailed("shared", _sgd)
    x, _ = batch("mlp", dist.get_rank(), 0)
    _refused(Misuse, "use_reentrant=False", lambda: side.call(x).sum().backward())
    shutdown(side.model)
    reference = networks.ddp("shared", _sgd)
    with pytest.raises(RuntimeError, match="ready only once"):
        reference.call(x).sum().backward()


def several_forward_passes_a_step() -> None:
    def siamese(side: Side) -> list[float]:
        losses = []
        for i in range(4):
            one, two = (side.call(batch("mlp", dist.get_rank(), 2 * i + j)[0]) for j in range(2))
            losses.append(_stepped(side, (one - two).square().mean()))
        return losses

    def summed(side: Side) -> list[float]:
        return [_stepped(side, sum((side.loss(3 * i + j) for j in range(3)), torch.tensor(0.0))) for i in range(4)]

    for loop in (siamese, summed):
        both(loop, _sgd, update="worker", **SLOW)
        both(loop, _sgd, update="hub")


class _Deep(nn.Module):
    """Layers in an order, and a number of them, that the step chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.last = nn.Linear(8, 3)
        self.path: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in self.path:
            x = torch.relu(self.layers[index](x)) + x
        return self.last(x)


def graphs_that_change() -> None:
    networks.NETWORKS["deep"] = _Deep

    def loop(side: Side) -> list[float]:
        side.network = "mlp"
        losses = []
        for i, path in enumerate(([0, 1, 2, 3, 4], [4, 2, 0], [], [1, 1, 3], [3, 2, 1, 0, 4], [2])):
            side.model.path = path if dist.get_rank() == 0 or i % 2 else path[::-1]
            losses.append(side.step(i))
        side.network = "deep"
        return losses

    both(loop, _adamw, network="deep", unused=True, update="worker", **SLOW)
    both(loop, _sgd, network="deep", unused=True, update="hub")


def second_order_terms() -> None:
    """A gradient penalty: the inner gradient is made by autograd.grad and stays here, the outer one is shared."""

    def loop(side: Side) -> list[float]:
        losses = []
        for i in range(4):
            x, y = batch("mlp", dist.get_rank(), i)
            x.requires_grad_()
            loss = nn.functional.cross_entropy(side.call(x), y)
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            losses.append(_stepped(side, loss + slope.square().sum()))
        return losses

    both(loop, _sgd, update="worker", **SLOW)
    both(loop, _sgd, update="hub")


def graphs_of_gradients_are_refused() -> None:
    """A mean has no graph: what is built on the gradient would be this rank's own, silently (as under DDP)."""
    side = dovetailed("mlp", _sgd)
    loss = side.loss(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _refused(Misuse, "create_graph", lambda: loss.backward(create_graph=True))
    side.model.zero_grad()
    shutdown(side.model)


def reparametrised_weights() -> None:
    class Normed(networks.Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.middle = nn.utils.parametrizations.weight_norm(self.middle)
            self.first = nn.utils.parametrizations.spectral_norm(self.first)

    networks.NETWORKS["normed"] = Normed

    def loop(side: Side) -> list[float]:
        side.network = "mlp"
        losses = [side.step(i) for i in range(4)]
        side.network = "normed"
        return losses

    both(loop, _sgd, network="normed", update="worker", **SLOW)


def beginning_anew_after_a_failed_backward_pass() -> None:
    """Half the gradients have left, the other half never will: the job ends, and shutdown() waits for nothing."""

    def fail(grad: torch.Tensor) -> None:
        raise ZeroDivisionError

    def loop(side: Side) -> list[float]:
        losses = [side.step(0), side.step(1)]
        if side.dovetail:
            side.model.state_dict()
            dist.barrier()  # both have the last step: what is on its way ends with the job
            x, _ = batch("mlp", dist.get_rank(), 2)
            hidden: torch.Tensor = side.model.middle(side.model.first(x))  # type: ignore[operator]
            hidden.register_hook(fail)
            with pytest.raises((ZeroDivisionError, PeerLost)):  # the other rank's, if that was first
                side.model.last(hidden).sum().backward()  # type: ignore[operator]
            shutdown(side.model)
            networks.distribute(side.model, side.optimizer)
        return [*losses, side.step(3), side.step(4)]

    both(loop, _sgd)
    both(loop, _sgd, policy="dear", **SLOW)


# Compiled models


def _compiled(form: str, backend: str, *, close: float = 0.0, **options: Any) -> None:
    """The same losses as DDP, no step that waits, and one graph for each piece that was compiled."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    reference = networks.ddp("mlp", _sgd)
    wanted = [reference.step(i) for i in range(4)]
    counter = CompileCounterWithBackend(backend)
    model: Any = networks.build("mlp", dist.get_rank())
    optimizer = _sgd(model)
    root = call = model
    if form == "before":
        root = call = torch.compile(model, backend=counter)
    elif form == "in place":
        model.compile(backend=counter, fullgraph=True)
    elif form == "layers":
        for layer in (model.first, model.middle, model.last):
            layer.compile(backend=counter)
    networks.distribute(root, optimizer, **SLOW, **options)
    if form == "after":
        call = torch.compile(model, backend=counter)
    elif form == "function":
        call = torch.compile(
            lambda x: model.last(torch.relu(model.middle(torch.relu(model.first(x))))), backend=counter
        )
    side = Side(call, model, optimizer, lambda: networks.no_sync(model))
    found = [side.step(i) for i in range(4)]
    assert sum(slot.due for slot in jobs(root)[0].slots) > 0, f"{form}: step() waited"
    if form == "layers":
        model.first(torch.zeros(6, 8))
        assert sum(slot.due for slot in jobs(root)[0].slots) > 0, "a layer waited for the whole model"
    with torch.no_grad():
        x = torch.ones(6, 8)
        assert torch.allclose(call(x), reference.model(x), rtol=0, atol=close), "evaluation right after step()"
    assert max(abs(a - b) for a, b in zip(wanted, found, strict=True)) < 1e-6, (form, wanted, found)
    assert counter.frame_count <= (3 if form == "layers" else 1) * 3, f"{form}: {counter.frame_count} graphs"
    shutdown(root)


def compiled_models() -> None:
    for form in ("before", "after", "in place", "function"):
        _compiled(form, "eager", update="worker")
    _compiled("layers", "aot_eager", update="worker")
    torch._dynamo.reset()


def models_compiled_by_inductor() -> None:
    """Its kernels read memory that no torch function names."""
    with torch._inductor.config.patch(compile_threads=1):
        _compiled("in place", "inductor", close=1e-6, update="worker")
    torch._dynamo.reset()


ALL = networks.scenarios(globals())
