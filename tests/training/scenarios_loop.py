"""Loops as people write them: each must train as under DDP. Run on two ranks by test_semantics.py."""

from __future__ import annotations

from typing import Any

import networks
import torch
import torch.distributed as dist
from networks import OPTIMIZERS, Side, both, dovetailed, in_flight
from torch import nn

from dovetail.training import shutdown

SLOW = {"rate": 4e5}  # bytes per second: results are on their way for a while after step()


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["adamw"](model.parameters())


def steps_return_before_their_results_are_there() -> None:
    side = dovetailed("mlp", _sgd, update="worker", rate=1e5)
    side.step(0)
    assert in_flight(side) > 0
    first = side.model.first.weight.sum().item()
    assert in_flight(side) > 0, "the first layer's weight waited for the whole model"
    assert first == side.model.state_dict()["first.weight"].sum().item()
    assert in_flight(side) == 0
    shutdown(side.model)


def param_groups() -> None:
    def make(model: Any) -> torch.optim.Optimizer:
        heads = {"params": model.last.parameters(), "lr": 0.5, "weight_decay": 0.1}
        rest = {"params": [*model.first.parameters(), *model.middle.parameters()]}
        return torch.optim.SGD([heads, rest], lr=0.01, momentum=0.9)

    for update in ("worker", "hub"):
        both(lambda side: [side.step(i) for i in range(4)], make, update=update)


def schedulers() -> None:
    def loop(side: Side) -> list[float]:
        optimizer = side.optimizer
        made_later = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=8)  # momentum changes, too
        losses = []
        for i in range(6):
            losses.append(side.step(i))
            made_later.step()
        return losses

    def made_before(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = _sgd(model)
        optimizer.early = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # type: ignore[attr-defined]
        return optimizer

    def early(side: Side) -> list[float]:
        losses = []
        for i in range(5):
            losses.append(side.step(i))
            side.optimizer.early.step()  # type: ignore[attr-defined]
        return losses

    for update in ("worker", "hub"):
        both(loop, _sgd, update=update, **SLOW)
        both(early, made_before, update=update)


def zero_grad_either_way() -> None:
    def loop(zero: Any) -> Any:
        def run(side: Side) -> list[float]:
            losses = []
            for i in range(4):
                loss = side.loss(i)
                loss.backward()
                side.optimizer.step()
                zero(side)  # right after step(), while gradients are on their way
                losses.append(loss.item())
            return losses

        return run

    for update in ("worker", "hub"):
        both(loop(lambda s: s.optimizer.zero_grad()), _sgd, update=update, **SLOW)
        both(loop(lambda s: s.optimizer.zero_grad(set_to_none=False)), _sgd, update=update, **SLOW)
        both(loop(lambda s: s.model.zero_grad()), _sgd, update=update, **SLOW)
        both(loop(lambda s: s.model.zero_grad(set_to_none=False)), _sgd, update=update, **SLOW)
        both(loop(lambda s: [setattr(p, "grad", None) for p in s.model.parameters()]), _sgd, update=update, **SLOW)
    both(loop(lambda s: None), _sgd, update="worker", **SLOW)  # gradients pile up


def zero_grad_does_not_wait() -> None:
    side = dovetailed("mlp", _sgd, **SLOW)
    for zero in (side.optimizer.zero_grad, side.model.zero_grad):
        for set_to_none in (True, False):
            side.step(0)
            before = in_flight(side)
            zero(set_to_none=set_to_none)
            assert before > 0
            assert in_flight(side) == before
    shutdown(side.model)


def accumulation_under_no_sync() -> None:
    def loop(side: Side) -> list[float]:
        losses = []
        for i in range(4):
            side.optimizer.zero_grad()
            with side.no_sync():
                for j in range(2):
                    side.loss(10 * i + j).backward()
            loss = side.loss(10 * i + 2)
            loss.backward()
            side.optimizer.step()
            losses.append(loss.item())
        return losses

    for update in ("worker", "hub"):
        both(loop, _adamw if update == "worker" else _sgd, update=update)


def two_backward_passes_a_step() -> None:
    def loop(side: Side) -> None:
        for i in range(3):
            side.optimizer.zero_grad()
            side.loss(2 * i).backward()
            side.loss(2 * i + 1).backward()
            side.optimizer.step()

    both(loop, _sgd, update="worker")


def skipped_steps() -> None:
    def loop(side: Side) -> None:
        for i in range(4):
            side.optimizer.zero_grad()
            side.loss(i).backward()
            if i != 1:
                side.optimizer.step()

    both(loop, _sgd, update="worker")


def clipping_and_reading_gradients() -> None:
    def loop(side: Side) -> list[float]:
        seen = []
        for i in range(4):
            side.optimizer.zero_grad()
            side.loss(i).backward()
            seen.append(nn.utils.clip_grad_norm_(side.model.parameters(), 0.3).item())
            seen.append(side.model.last.weight.grad.abs().max().item())  # type: ignore[union-attr]
            nn.utils.clip_grad_value_(side.model.parameters(), 0.01)
            side.optimizer.step()
        return seen

    both(loop, _sgd, update="worker", **SLOW)


def replaced_and_dropped_gradients() -> None:
    def loop(side: Side) -> None:
        for i in range(3):
            side.optimizer.zero_grad()
            side.loss(i).backward()
            last, first = side.model.last, side.model.first
            last.weight.grad = last.weight.grad * 0.5  # type: ignore[operator]
            first.bias.grad = None
            side.optimizer.step()

    both(loop, _sgd, update="worker", **SLOW)


def unused_parameters() -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.left, self.right, self.never = (nn.Linear(8, 8) for _ in range(4))
            self.last = nn.Linear(8, 3)
            self.way = "both"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            y = (
                self.left(y)
                if self.way == "left"
                else self.right(y)
                if self.way == "right"
                else self.left(self.right(y))
            )
            return self.last(y)

    networks.NETWORKS["forked"] = Forked

    def loop(side: Side) -> list[float]:
        ways = [("both", "both"), ("left", "right"), ("left", "left"), ("both", "right"), ("right", "right")]
        losses = []
        for i, way in enumerate(ways):
            side.model.way = way[dist.get_rank()]
            side.network = "mlp"
            losses.append(side.step(i))
            side.network = "forked"
        return losses

    both(loop, _sgd, network="forked", unused=True, update="worker")
    both(loop, _adamw, network="forked", unused=True, update="worker", **SLOW)
    both(loop, _sgd, network="forked", unused=True, update="hub")


def frozen_parameters() -> None:
    def frozen_before(model: nn.Module) -> torch.optim.Optimizer:
        model.first.requires_grad_(False)
        return _sgd(model)

    def loop(side: Side) -> list[float]:
        return [side.step(i) for i in range(3)]

    both(loop, frozen_before, update="worker")
    both(loop, frozen_before, update="hub")

    def freezes_later(side: Side) -> list[float]:
        losses = [side.step(0)]
        side.optimizer.zero_grad()
        side.model.first.requires_grad_(False)
        return losses + [side.step(i) for i in (1, 2)]

    both(freezes_later, _sgd, unused=True, update="worker")


def buffers_while_accumulating() -> None:
    def loop(side: Side) -> list[float]:
        for i in range(3):
            side.optimizer.zero_grad()
            with side.no_sync():
                side.loss(2 * i).backward()
            side.loss(2 * i + 1).backward()
            side.optimizer.step()
        return [buffer.double().sum().item() for buffer in side.model.buffers()]

    both(loop, _sgd, network="cnn", update="worker")


def buffers_follow_rank_zero() -> None:
    """A forward pass sees what rank 0's last one left, and leaves this rank's own batch on top of that."""

    def loop(side: Side) -> list[float]:
        norm: Any = side.model.body[1]  # type: ignore[index]
        before: list[float] = []
        after: list[float] = []
        handle = norm.register_forward_pre_hook(lambda *_: before.extend(norm.running_mean.tolist()))
        for i in range(4):
            side.step(i)
            after += norm.running_mean.tolist()
        handle.remove()
        every: list[Any] = [None, None]
        dist.all_gather_object(every, (before, after))
        assert every[0][0] == every[1][0], "a forward pass saw other statistics than rank 0's"
        assert every[0][1] != every[1][1], "the ranks' own batches left the same statistics"
        return before + after

    for update in ("worker", "hub"):
        both(loop, _sgd, network="cnn", update=update)


def evaluation_between_steps() -> None:
    def loop(side: Side) -> list[float]:
        seen = []
        for i in range(3):
            side.step(i)
            side.model.eval()
            with torch.no_grad():
                seen.append(side.model(torch.ones(2, 8)).sum().item())
            side.model.train()
        return seen

    for update in ("worker", "hub"):
        both(loop, _sgd, update=update, **SLOW)


def moving_average_after_step() -> None:
    def loop(side: Side) -> float:
        average = [torch.zeros_like(p) for p in side.model.parameters()]
        for i in range(3):
            side.step(i)
            for a, p in zip(average, side.model.parameters(), strict=True):
                a.mul_(0.9).add_(p.data, alpha=0.1)
        swa = torch.optim.swa_utils.AveragedModel(side.model)
        side.step(3)
        swa.update_parameters(side.model)
        return sum(a.sum().item() for a in average) + sum(p.sum().item() for p in swa.parameters())

    for update in ("worker", "hub"):
        both(loop, _sgd, update=update, **SLOW)


ALL = networks.scenarios(globals())
