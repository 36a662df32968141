"""engine="c10d" and DDP models handed to distribute(): the same bits as DDP on two ranks, and no hang."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import networks
import pytest
import torch
import torch.distributed as dist
from harness import ranks, reach
from networks import OPTIMIZERS, Side, batch, both, build, ddp, dovetailed, jobs, same, same_state
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from dovetail.engine.session import Options
from dovetail.errors import BadInput, DovetailError, Misuse, PeerLost
from dovetail.plan.first_use import first_use
from dovetail.plan.policies import policies, register_policy
from dovetail.plan.slices import slices
from dovetail.plan.sparsify import sparsify
from dovetail.training import distribute, gather_timeline, shutdown


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["adamw"](model.parameters())


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def _steps(side: Side) -> list[float]:
    return [side.step(step) for step in range(8)]


def _accumulate(side: Side) -> list[float]:
    losses = []
    for i in range(4):
        side.optimizer.zero_grad()
        with side.no_sync():
            side.loss(10 * i).backward()
        loss = side.loss(10 * i + 1)
        loss.backward()
        side.optimizer.step()
        losses.append(loss.item())
    return losses


class Forked(nn.Module):
    """Each rank goes its own way, and one layer is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right, self.never = (nn.Linear(8, 8) for _ in range(4))
        self.last = nn.Linear(8, 3)
        self.way = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(
            self.left(y) if self.way == 0 else self.right(y) if self.way == 1 else self.left(self.right(y))
        )


def _fork(side: Side) -> list[float]:
    losses = []
    for step, ways in enumerate([(2, 2), (0, 1), (0, 0), (2, 1), (1, 1), (1, 0)]):
        side.model.way = ways[dist.get_rank()]
        x, y = batch("mlp", dist.get_rank(), step)
        side.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(side.call(x), y)
        loss.backward()
        side.optimizer.step()
        losses.append(loss.item())
    return losses


def every_policy() -> None:
    for policy in policies():
        both(_steps, _sgd, network="cnn", engine="c10d", policy=policy)
    for network in ("transformer", "lstm"):
        both(_steps, _adamw, network=network, engine="c10d", policy="dear")


def the_best_by_trial() -> None:
    both(lambda side: [side.step(step) for step in range(18)], _sgd, engine="c10d", policy="auto")


def accumulation() -> None:
    both(_accumulate, _adamw, engine="c10d", policy="dear")


def unused_parameters() -> None:
    networks.NETWORKS["forked"] = Forked
    both(_fork, _sgd, network="forked", unused=True, engine="c10d", policy="dear")


def what_a_group_cannot_do() -> None:
    model = build("mlp", 0)
    for refused in ({"hubs": ["h:1"]}, {"aggregation": "ring"}, {"rate": 1e6}, {"update": "hub"}, {"engine": "mpi"}):
        with pytest.raises(BadInput, match="engine="):
            distribute(model, _sgd(model), **{"engine": "c10d", "hubs": (), **refused})
    without_effect: dict[str, dict[str, Any]] = {
        "deterministic=True": {"deterministic": True},
        "lanes=2, timeout=9.0": {"options": Options(timeout=9.0, lanes=2, trace=True, secret="for a hub")},
        r"shares=\(0\.5, 0\.5\)": {"options": Options(shares=(0.5, 0.5))},
    }
    for named, given in without_effect.items():
        with pytest.raises(BadInput, match=f"collectives, which know no {named}; leave that out"):
            distribute(model, _sgd(model), engine="c10d", hubs=(), **given)
    register_policy("p3-sparse", (slices, first_use, partial(sparsify, keep=0.01)))
    with pytest.raises(BadInput, match=r"1\.000% of gradient values .* leave the pass 'sparsify' out"):
        distribute(model, _sgd(model), policy="p3-sparse", engine="c10d")
    alone = dist.get_rank() == 0
    with pytest.raises(DovetailError, match="rank 0 has policy 'p3', engine 'native'"):
        distribute(model, _sgd(model), engine="native" if alone else "c10d")
    register_policy("mine", (slices, first_use) if alone else (slices,))
    with pytest.raises(DovetailError, match="rank 0 has a plan of"):
        distribute(model, _sgd(model), policy="mine", engine="c10d")


def its_timeline() -> None:
    side = dovetailed("mlp", _sgd, engine="c10d", policy="dear", options=Options(trace=True))
    _steps(side)
    line = gather_timeline(side.model)
    if line is not None:
        assert {s.lane for s in line.spans} >= {"send", "receive"}
    shutdown(side.model)


def _handed_over(network: str, make: Any, wrapping: dict[str, Any], **options: Any) -> Side:
    model = build(network, dist.get_rank())
    optimizer = make(model)
    wrapped = DistributedDataParallel(model, **wrapping)
    distribute(wrapped, optimizer, **options)
    return Side(wrapped, model, optimizer, wrapped.no_sync, network)


def ddp_models() -> None:
    networks.NETWORKS["forked"] = Forked
    cases: list[tuple[Callable[[Side], Any], str, dict[str, Any], dict[str, Any]]] = [
        (_steps, "cnn", {}, {}),
        (_steps, "cnn", {"gradient_as_bucket_view": True, "static_graph": True}, {"policy": "dear"}),
        (_steps, "transformer", {}, {"engine": "c10d", "policy": "dear"}),
        (_accumulate, "mlp", {}, {}),
        (_fork, "forked", {"find_unused_parameters": True}, {}),
    ]
    for loop, network, wrapping, options in cases:
        reference = ddp(network, _sgd, **{**wrapping, "static_graph": False})
        wanted = loop(reference)
        ours = _handed_over(network, _sgd, wrapping, **options)
        assert loop(ours) == wanted, (network, wrapping)
        same(reference.model.state_dict(), ours.model.state_dict())
        same_state(reference.optimizer, ours.optimizer)
        shutdown(ours.call)


def _gloo_calls(train: Callable[[], Any]) -> int:
    """How often the process group was asked to sum."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train()
    return sum(event.name == "gloo:all_reduce" for event in profile.events())


def ddps_reducer_is_off_and_comes_back() -> None:
    """Nothing but our own calls travels, in between; afterwards DDP trains on as if nothing had been."""
    reference = ddp("mlp", _sgd)
    wanted = _steps(reference)
    ours = _handed_over("mlp", _sgd, {})
    wrapped = ours.call
    assert isinstance(wrapped, DistributedDataParallel)
    with pytest.raises(Misuse, match=r"the work of dovetail\.join"):
        wrapped.join()
    with pytest.raises(Misuse, match="DDP's reducer"):
        wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    found: list[float] = []
    assert _gloo_calls(lambda: found.extend(ours.step(step) for step in range(4))) == 0
    shutdown(wrapped)
    assert _gloo_calls(lambda: found.extend(ours.step(step) for step in range(4, 8))) >= 4
    assert found == wanted
    same(reference.model.state_dict(), ours.model.state_dict())


def what_ddp_does_beside_its_means_is_refused() -> None:
    hooked = DistributedDataParallel(build("mlp", 0))
    hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    of_some_ranks = DistributedDataParallel(build("mlp", 0), process_group=alone)
    mixed = DistributedDataParallel(build("mlp", 0), mixed_precision=_MixedPrecision(reduce_dtype=torch.bfloat16))
    for model, word in ((hooked, "communication hook"), (of_some_ranks, "default group"), (mixed, "torch.autocast")):
        optimizer = _sgd(model)
        with pytest.raises(BadInput, match=word) as caught:
            distribute(model, optimizer)
        assert "\n" not in str(caught.value)
        assert "step" not in optimizer.__dict__, "the optimizer that was refused is not as it was"


def step_returns_while_a_peer_is_held_up() -> None:
    """Rank 1 begins its iteration only when rank 0 has left step(): no mean can be there yet."""
    makers: list[Callable[[], Side]] = [
        lambda: dovetailed("mlp", _sgd),
        lambda: dovetailed("mlp", _sgd, engine="c10d"),
        lambda: dovetailed("mlp", _sgd, engine="c10d", policy="dear"),
        lambda: _handed_over("mlp", _sgd, {}),
        lambda: _handed_over("mlp", _sgd, {"gradient_as_bucket_view": True}, engine="c10d", policy="dear"),
    ]
    store = dist.distributed_c10d._get_default_store()
    for number, make in enumerate(makers):
        side, left = make(), f"left step {number}"
        for step in range(4):
            side.step(step)
        if dist.get_rank() == 1:
            store.wait([left], timedelta(seconds=10))
        side.optimizer.zero_grad()
        side.loss(4).backward()
        side.optimizer.step()
        if dist.get_rank() == 0:
            assert len(jobs(side.call)[0]._due) == 6, "weights and biases of three layers"  # type: ignore[arg-type]
            store.set(left, "")
        side.step(5)
        sums: list[Any] = [None, None]
        dist.all_gather_object(sums, [p.detach().double().sum().item() for p in side.model.parameters()])
        assert sums[0] == sums[1]
        shutdown(side.call)  # type: ignore[arg-type]


def copies_of_ddp_models_are_ddps_own() -> None:
    """The copy's reducer sends again, and its calls are its own; the original stays with dovetail."""
    reference, ours = ddp("mlp", _sgd), _handed_over("mlp", _sgd, {})
    assert reference.step(0) == ours.step(0)
    for duplicate in (copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))):
        sides = []
        for wrapped in (reference.call, ours.call):
            twin: Any = duplicate(wrapped)
            assert not {"no_sync", "join", "register_comm_hook"} & twin.__dict__.keys()
            sides.append(Side(twin, twin.module, _sgd(twin.module), twin.no_sync))
        assert _accumulate(sides[0]) == _accumulate(sides[1])
        same(sides[0].model.state_dict(), sides[1].model.state_dict())
    assert reference.step(1) == ours.step(1)
    assert _gloo_calls(lambda: ours.step(2)) == 0
    reference.step(2)
    same(reference.model.state_dict(), ours.model.state_dict())
    shutdown(ours.call)


SCENARIOS = (
    every_policy, the_best_by_trial, accumulation, unused_parameters, what_a_group_cannot_do, its_timeline, ddp_models,
    ddps_reducer_is_off_and_comes_back, step_returns_while_a_peer_is_held_up,
    copies_of_ddp_models_are_ddps_own, what_ddp_does_beside_its_means_is_refused,
)  # fmt: skip


def run_all(rank: int, size: int) -> dict[str, str]:
    """Each scenario's failure, or an empty string; after the first one the ranks may be out of step."""
    outcome: dict[str, str] = {}
    for scenario in SCENARIOS:
        try:
            scenario()
            outcome[scenario.__name__] = ""
        except Exception:
            outcome[scenario.__name__] = traceback.format_exc()
            break
    return outcome


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    with ranks(2, run_all, gloo=True) as group:
        return group.results(120)


@pytest.mark.parametrize("scenario", [s.__name__ for s in SCENARIOS])
def test_two_ranks_on_a_process_group(outcomes: list[dict[str, str]], scenario: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert outcome.get(scenario, "was not reached") == "", f"rank {rank}: {outcome.get(scenario)}"


def train_for_ever(rank: int, size: int) -> None:
    side = dovetailed("mlp", _sgd, engine="c10d", policy="dear")
    step = 0
    while True:
        side.step(step)
        step += 1
        if step == 5:
            reach("training")


def test_a_killed_rank_ends_training_on_the_others() -> None:
    with ranks(2, train_for_ever, gloo=True) as group:
        group.wait_for("training", within=60)
        group.kill(0)
        assert group.errors(within=10) == {1: PeerLost}
