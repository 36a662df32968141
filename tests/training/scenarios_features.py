"""What people use every day beside the plain loop, each as under DDP. Run on two ranks by test_features.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import networks
import pytest
import torch
import torch.distributed as dist
from networks import OPTIMIZERS, Side, batch, both, dovetailed, in_flight, jobs
from scenarios_loop import SLOW
from scenarios_state import _refused
from torch import nn
from torch.utils.checkpoint import checkpoint

from dovetail.errors import BadInput, Misuse
from dovetail.training import clip_grad_norm_, join, shutdown


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def _plain(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["plain"](model.parameters())


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["adamw"](model.parameters())


def _stepped(side: Side, loss: torch.Tensor) -> float:
    side.optimizer.zero_grad()
    loss.backward()
    side.optimizer.step()
    return loss.item()


# Mixed precision


def autocast_in_bfloat16() -> None:
    def loop(side: Side) -> list[float]:
        losses = []
        for i in range(4):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = side.loss(i)
            losses.append(_stepped(side, loss))
        return losses

    both(loop, _adamw, update="worker", **SLOW)
    both(loop, _sgd, update="hub")
    both(loop, _sgd, network="transformer", update="worker")


def scaler_with_autocast_unscaling_and_clipping() -> None:
    """Unscaling reads gradients on their way; one overflow makes both ranks skip the step."""

    def loop(side: Side) -> list[float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        seen = []
        for i in range(5):
            side.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = side.loss(i)
            if i == 2 and dist.get_rank() == 0:
                loss = loss * float("nan")
            scaler.scale(loss).backward()
            scaler.unscale_(side.optimizer)
            norm = nn.utils.clip_grad_norm_(side.model.parameters(), 0.5).item()
            scaler.step(side.optimizer)
            scaler.update()
            seen += [scaler.get_scale(), norm if i != 2 else 0.0]
        return seen

    both(loop, _sgd, update="worker", **SLOW)
    both(loop, _adamw, network="cnn", update="worker")


def weights_in_bfloat16() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.to(torch.bfloat16).parameters(), lr=0.05, momentum=0.9)

    def loop(side: Side) -> list[float]:
        losses = []
        for i in range(4):
            x, y = batch("mlp", dist.get_rank(), i)
            losses.append(_stepped(side, nn.functional.cross_entropy(side.call(x.bfloat16()), y)))
        return losses

    both(loop, make)


# Clipping


def clipping_that_does_not_wait_for_results() -> None:
    """Norms within rounding of torch's, equal bits on all ranks, and results on their way after clip and step."""

    def loop(side: Side) -> tuple[list[float], list[float], int]:
        norms, losses, flying = [], [], 0
        for i in range(6):
            side.optimizer.zero_grad()
            loss = side.loss(i)
            loss.backward()
            if side.dovetail:
                norm = clip_grad_norm_(side.model, 0.3)
                if i >= 2:  # the first call is torch's own, which waits
                    flying += sum(slot.flying for slot in jobs(side.model)[0].slots)
            else:
                norm = nn.utils.clip_grad_norm_(side.model.parameters(), 0.3)
            if i == 4:  # read after clipping: the clipped mean
                norms.append(side.model.middle.weight.grad.norm().item())  # type: ignore[union-attr, operator]
            side.optimizer.step()
            norms.append(norm.item())
            losses.append(loss.item())
        return norms, losses, flying

    plans: list[dict[str, Any]] = [{}, {"policy": "dear"}, {"policy": "ddp", "aggregation": "ring"}]
    for options in (*({**plan, **SLOW} for plan in plans), {"deterministic": True}):
        reference, side = networks.ddp("mlp", _adamw), dovetailed("mlp", _adamw, update="worker", **options)
        (wanted, losses, _), (found, ours, flying) = loop(reference), loop(side)
        assert torch.allclose(torch.tensor(wanted), torch.tensor(found), rtol=1e-5), (wanted, found)
        assert torch.allclose(torch.tensor(losses), torch.tensor(ours), rtol=1e-5), (losses, ours)
        assert flying > 0 or "rate" not in options, "clipping waited for every result"
        every: list[Any] = [None, None]
        dist.all_gather_object(every, (found, [p.detach().double().sum().item() for p in side.model.parameters()]))
        assert every[0] == every[1]
        shutdown(side.model)


def clipping_of_changed_gradients() -> None:
    """Where gradients are not just the means any more, or the norm is another one, it is torch's own clipping."""

    def loop(side: Side) -> list[float]:
        def clipped(kind: float) -> float:
            if side.dovetail:
                return clip_grad_norm_(side.model, 0.2, kind).item()
            return nn.utils.clip_grad_norm_(side.model.parameters(), 0.2, kind).item()

        norms = []
        for i in range(5):
            side.optimizer.zero_grad()
            with side.no_sync():
                side.loss(2 * i).backward()
            side.loss(2 * i + 1).backward()
            if i != 3:
                side.model.last.weight.grad.mul_(3)  # type: ignore[union-attr, operator]
            norms.append(clipped(float("inf") if i == 3 else 2.0))
            norms.append(clipped(2.0))  # once more, which changes next to nothing
            side.optimizer.step()
        return norms

    both(loop, _sgd, update="worker", **SLOW)

    side = dovetailed("mlp", _sgd, update="hub")
    side.loss(0).backward()
    _refused(Misuse, "update='worker'", lambda: clip_grad_norm_(side.model, 1.0))
    shutdown(side.model)


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
    """DDP refuses it, too: each checkpoint's own backward pass completes the weight's gradient once more."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
            return checkpoint(self.first, x, use_reentrant=True)

    networks.NETWORKS["shared"] = Shared
    side = dovetailed("shared", _sgd)
    x, _ = batch("mlp", dist.get_rank(), 0)
    _refused(Misuse, "use_reentrant=False", lambda: side.call(x).sum().backward())
    shutdown(side.model)


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


# Compiled models


def _compiled(form: str, backend: str, **options: Any) -> None:
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
        assert torch.equal(call(x), reference.model(x)), "evaluation right after step()"
    assert max(abs(a - b) for a, b in zip(wanted, found, strict=True)) < 1e-6, (form, wanted, found)
    assert counter.frame_count <= (3 if form == "layers" else 1) * 3, f"{form}: {counter.frame_count} graphs"
    shutdown(root)


def compiled_models() -> None:
    for form in ("before", "after", "in place", "function"):
        _compiled(form, "eager", update="worker")
    _compiled("layers", "aot_eager", update="worker")
    torch._dynamo.reset()


# Schedules and averages


def schedulers_of_every_kind() -> None:
    kinds: list[Callable[[torch.optim.Optimizer], Any]] = [
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
                torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
            ],
            [2],
        ),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    ]

    def loop(make: Callable[[torch.optim.Optimizer], Any]) -> Callable[[Side], list[float]]:
        def run(side: Side) -> list[float]:
            schedule = make(side.optimizer)
            losses = []
            for i in range(5):
                losses.append(side.step(i))
                schedule.step()
            return losses + schedule.get_last_lr()

        return run

    def plateau(side: Side) -> list[float]:
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(side.optimizer, patience=0, factor=0.5)
        for i in range(5):
            loss = torch.tensor(side.step(i))
            dist.all_reduce(loss)  # all ranks must come to the same rate
            schedule.step(loss.item())
        return [group["lr"] for group in side.optimizer.param_groups]

    for make in kinds:
        both(loop(make), _sgd, update="worker")
    both(plateau, _sgd, update="worker")
    both(loop(kinds[0]), _sgd, update="hub")


def averaged_models() -> None:
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

    def loop(side: Side) -> list[float]:
        mean = AveragedModel(side.model, use_buffers=False)
        moving = AveragedModel(side.model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
        schedule = SWALR(side.optimizer, swa_lr=0.02, anneal_epochs=2)
        for i in range(4):
            side.step(i)
            moving.update_parameters(side.model)
            if i > 1:
                mean.update_parameters(side.model)
                schedule.step()
        update_bn([batch("cnn", 0, i)[0] for i in range(3)], mean)
        found = [p.double().sum().item() for m in (mean, moving) for p in m.parameters()]
        return found + [b.double().sum().item() for b in mean.module.buffers()]

    for update in ("worker", "hub"):
        both(loop, _sgd, network="cnn", update=update, **({} if update == "hub" else SLOW))


# Uneven inputs


def _joining(side: Side) -> Any:
    return join(side.model) if side.dovetail else side.call.join()  # type: ignore[attr-defined]


def uneven_inputs() -> None:
    """Whoever has more data, with buffers and without, accumulating, and training on together afterwards."""

    def loop(longer: int, rounds: int) -> Callable[[Side], list[float]]:
        def run(side: Side) -> list[float]:
            with _joining(side):
                for i in range(5 if dist.get_rank() == longer else 2):
                    side.optimizer.zero_grad()
                    for j in range(rounds):
                        side.loss(10 * i + j).backward()
                    side.optimizer.step()
            return [p.double().sum().item() for p in side.model.parameters()]

        return run

    for longer in (0, 1):
        both(loop(longer, 1), _plain, update="worker", **SLOW)
        both(loop(longer, 2), _plain, update="worker")
    both(loop(0, 1), _plain, network="cnn", update="worker")
    both(loop(1, 1), _plain, network="cnn", update="worker", policy="dear")

    side = dovetailed("mlp", _adamw)
    with join(side.model):
        for i in range(1 + 2 * dist.get_rank()):
            side.step(i)
    for i in range(2):
        side.step(i)
    own = [*side.model.parameters(), *(v for state in side.optimizer.state.values() for v in state.values())]
    every: list[Any] = [None, None]
    dist.all_gather_object(every, [t.double().sum().item() for t in own])
    assert every[0] == every[1], "the ranks trained on with different weights or states"
    shutdown(side.model)

    side = dovetailed("mlp", _sgd, update="hub")
    _refused(BadInput, "update='worker'", lambda: join(side.model).__enter__())
    shutdown(side.model)


# Refused


def synchronised_batch_norm_is_refused() -> None:
    """As by DDP: torch has no such layer for CPUs."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.norm = nn.SyncBatchNorm(8)

    model = Normed()
    _refused(BadInput, "'norm'", lambda: networks.distribute(model, _sgd(model)))
    with pytest.raises(ValueError, match="SyncBatchNorm"):
        nn.parallel.DistributedDataParallel(Normed())


def steps_do_not_wait_under_any_of_it() -> None:
    """The features above are no reason to wait: accumulation, schedules and autocast leave results on their way."""
    side = dovetailed("mlp", _sgd, **SLOW)
    schedule = torch.optim.lr_scheduler.ExponentialLR(side.optimizer, 0.9)
    for i in range(2):
        with side.no_sync():
            side.loss(2 * i).backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = side.loss(2 * i + 1)
        loss.backward()
        side.optimizer.step()
        schedule.step()
        side.optimizer.zero_grad()
        assert in_flight(side) > 0
    shutdown(side.model)


ALL = networks.scenarios(globals())
