"""What people use every day beside the plain loop, each as under DDP. Run on two ranks by test_features.py."""

from __future__ import annotations

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


def clipping_at_the_aggregator_is_refused() -> None:
    side = dovetailed("mlp", _sgd, update="hub")
    side.loss(0).backward()
    _refused(Misuse, "update='worker'", lambda: clip_grad_norm_(side.model, 1.0))
    shutdown(side.model)


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

    def loop(longer: int, rounds: int, clipped: bool = False) -> Callable[[Side], list[float]]:
        def run(side: Side) -> list[float]:
            with _joining(side):
                for i in range(5 if dist.get_rank() == longer else 2):
                    side.optimizer.zero_grad()
                    for j in range(rounds):
                        side.loss(10 * i + j).backward()
                    if clipped and side.dovetail:
                        clip_grad_norm_(side.model, 0.1)
                    elif clipped:
                        nn.utils.clip_grad_norm_(side.model.parameters(), 0.1)
                    side.optimizer.step()
            return [p.double().sum().item() for p in side.model.parameters()]

        return run

    for longer in (0, 1):
        both(loop(longer, 1), _plain, update="worker", **SLOW)
        both(loop(longer, 2), _plain, update="worker")
        both(loop(longer, 1, clipped=True), _plain, update="worker")
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


def uneven_inputs_at_the_aggregator_are_refused() -> None:
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
