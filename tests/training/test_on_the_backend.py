"""`distribute()` where the default group is the backend "dovetail": both engines give the weights of DDP on Gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import meet, ranks
from networks import OPTIMIZERS, Side, ddp, dovetailed
from torch import nn

from dovetail.training import clip_grad_norm_, join, shutdown, stats

STEPS = 6


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["adamw"](model.parameters())


def trained(side: Side) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Plain steps, one with clipping, and uneven inputs."""
    losses = [side.step(step) for step in range(STEPS)]
    side.optimizer.zero_grad()
    side.loss(STEPS).backward()
    losses.append(nn.utils.clip_grad_norm_(side.model.parameters(), 0.1).item())
    side.optimizer.step()
    with join(side.model) if side.dovetail else side.call.join():  # type: ignore[attr-defined]
        losses += [side.step(step) for step in range(1 + dist.get_rank())]
    return losses, {name: p.detach().clone() for name, p in side.model.named_parameters()}


def train(rank: int, size: int, engine: str, policy: str) -> dict[str, Any]:
    import dovetail.c10d  # noqa: F401

    meet("gloo", "gloo")
    wanted = trained(ddp("cnn", _adamw))
    dist.destroy_process_group()
    meet("dovetail", "dovetail")
    side = dovetailed("cnn", _adamw, engine=engine, policy=policy)
    found = trained(side)
    moved = sum(stats(side.model).sent.values())
    side.optimizer.zero_grad()
    side.loss(STEPS).backward()
    norm = clip_grad_norm_(side.model, 1.0).item()
    side.optimizer.step()
    shutdown(side.model)
    reduced = dist.group.WORLD.reduced
    after = torch.ones(9)
    dist.all_reduce(after)
    assert dist.group.WORLD.reduced == reduced + 1
    dist.destroy_process_group()
    return {"wanted": wanted, "found": found, "moved": moved, "norm": norm, "after": after}


@pytest.mark.parametrize(
    ("engine", "policy"),
    [("native", "p3"), ("c10d", "p3"), ("c10d", "dear")],  # dear's scatters are sends and receives
)
def test_weights_are_those_of_ddp_on_gloo(engine: str, policy: str) -> None:
    with ranks(2, train, args=(engine, policy)) as group:
        outcomes = group.results(60)
    for one in outcomes:
        (losses, weights), (ours, found) = one["wanted"], one["found"]
        assert ours == losses
        assert all(torch.equal(weights[name], found[name]) for name in weights)
        assert one["moved"] > 0
        assert one["norm"] > 0
        assert one["after"].tolist() == [2.0] * 9
    assert outcomes[0]["norm"] == outcomes[1]["norm"]
