"""A plan on a Gloo group: the mean arrives whatever the policy, the order of arrival and the missing gradients."""

from __future__ import annotations

import random
import re
import signal
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import ranks, reach

from dovetail.c10d import pulse
from dovetail.c10d.executor import C10dSession
from dovetail.c10d.limits import time_limit
from dovetail.engine.table import TensorSpec
from dovetail.errors import BadInput, Misuse, PeerLost
from dovetail.network.model import Cluster, Link
from dovetail.plan.policies import make_plan
from dovetail.plan.schedule import FORWARD, PULL, PUSH, Plan, Transfer
from dovetail.trace.graph import Op, Param, Profile

SIZES = (3000, 7, 120_001, 1, 64, 0, 50_000, 33)
TYPES = (torch.float32,) * 4 + (torch.bfloat16,) + (torch.float32,) * 2 + (torch.float64,)
CODES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f64"}
POLICIES = ("bulk", "fifo", "ddp", "p3", "tac", "dear", "caramel", "ibatch")


def profile() -> Profile:
    names = [f"w{i}" for i in range(len(SIZES))]
    params = [
        Param(name, count * dtype.itemsize, dtype.itemsize)
        for name, count, dtype in zip(names, SIZES, TYPES, strict=True)
    ]
    forward = [Op(f"f{i}", 1e-4, inputs=(f"f{i - 1}",) if i else (), reads=(name,)) for i, name in enumerate(names)]
    last = len(names) - 1
    backward = [
        Op(f"b{i}", 2e-4, inputs=(f"f{last}",) if i == last else (f"b{i + 1}",), produces=names[i])
        for i in reversed(range(len(names)))
    ]
    return Profile(ops=(*forward, *backward), params=tuple(params))


def specs() -> list[TensorSpec]:
    return [TensorSpec(f"w{i}", n * t.itemsize, CODES[t]) for i, (n, t) in enumerate(zip(SIZES, TYPES, strict=True))]


def gradient(rank: int, tensor: int, step: int) -> torch.Tensor | None:
    """What a rank has; some are missing on one rank, tensor 1 on all of them in step 2."""
    if (step == 2 and tensor == 1) or random.Random(f"{rank} {tensor} {step}").random() < 0.2:
        return None
    seed = torch.Generator().manual_seed(10_000 * rank + 100 * tensor + step)
    return torch.randn(SIZES[tensor], generator=seed).to(TYPES[tensor])


def run(session: C10dSession, rank: int, size: int, *, steps: int) -> None:
    chance = random.Random(rank)  # each rank has its own order of arrival
    for step in range(1, steps + 1):
        session.begin(step)
        order = list(range(len(SIZES)))
        chance.shuffle(order)
        held: dict[int, torch.Tensor] = {}
        for tensor in order:
            grad = gradient(rank, tensor, step)
            held[tensor] = torch.zeros(SIZES[tensor], dtype=TYPES[tensor]) if grad is None else grad
            if grad is None:
                session.bind(tensor, held[tensor].data_ptr())
            session.submit(tensor, step, 0 if grad is None or not grad.numel() else grad.data_ptr())
            if chance.random() < 0.2:
                time.sleep(0.002)
        session.backward_done(step)
        session.release(step)
        for tensor in order[::-1]:
            assert session.wait([tensor], step, timeout=30)
            assert session.completed(tensor) == step
            every = [gradient(r, tensor, step) for r in range(size)]
            shares = [g / size for g in every if g is not None]
            true = torch.stack(shares).sum(0) if shares else torch.zeros_like(held[tensor])
            close = {"rtol": 2e-2, "atol": 2e-2} if TYPES[tensor] == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(held[tensor], true, **close)
            if SIZES[tensor]:
                assert session.absent(tensor) == (not shares), (tensor, step)


def every_policy(rank: int, size: int) -> None:
    cluster = Cluster.uniform(workers=size, link=Link(startup=50e-6, bandwidth=125e6))
    for policy in POLICIES:
        plan = make_plan(profile(), cluster, policy)
        session = C10dSession.open(policy, plan=plan, tensors=specs(), trace=True)
        run(session, rank, size, steps=4)
        spans = session.spans()
        assert spans, policy
        assert session.spans() == []
        assert session.counters()["collectives"] >= 4 * min(len(plan.transfers), 1)
        if policy == "dear":
            assert {s.lane for s in spans} == {"send", "receive"}
        session.close()


def pulls_across_pushes(rank: int, size: int) -> None:
    """Pulls that cut pushes in two cannot be an all-gather of their shards; the results are the same."""
    every = profile().params
    pushes = [Transfer(PUSH, ((p.name, 0, p.nbytes),), i) for i, p in enumerate(every)]
    pulls = []
    for i, p in enumerate(every):
        half = p.nbytes // 2 // p.itemsize * p.itemsize
        pulls.append(Transfer(PULL, ((p.name, 0, half),), i, window=FORWARD))
        pulls.append(Transfer(PULL, ((p.name, half, p.nbytes - half),), 99 - i, window=FORWARD))
    session = C10dSession.open(
        "across", plan=Plan(policy="x", params=every, transfers=(*pushes, *pulls)), tensors=specs()
    )
    run(session, rank, size, steps=3)
    with pytest.raises(Misuse, match="begins after"):
        session.begin(9)
    session.close()
    session.close()


def beside_the_users_calls(rank: int, size: int) -> None:
    """The user's own collectives on the default group never get between the plan's."""
    plan = make_plan(profile(), Cluster.uniform(workers=size, link=Link(startup=5e-5, bandwidth=1e8)), "dear")
    session = C10dSession.open("beside", plan=plan, tensors=specs())
    for step in range(1, 6):
        session.begin(step)
        held = [torch.full((n,), float(rank), dtype=t) for n, t in zip(SIZES, TYPES, strict=True)]
        for tensor, grad in enumerate(held):
            session.submit(tensor, step, grad.data_ptr() if grad.numel() else 0)
            if tensor % 3 == rank:
                time.sleep(0.003)
        mine = torch.ones(1)
        dist.all_reduce(mine)
        assert mine.item() == size
        session.backward_done(step)
        assert session.wait(range(len(SIZES)), step, timeout=30)
        for grad in held:
            torch.testing.assert_close(grad, torch.full_like(grad, (size - 1) / 2))
    session.close()


def everything(rank: int, size: int) -> None:
    torch.set_num_threads(1)
    every_policy(rank, size)
    pulls_across_pushes(rank, size)
    beside_the_users_calls(rank, size)
    plan = make_plan(profile(), Cluster.uniform(workers=2, link=Link(startup=5e-5, bandwidth=1e8)), "p3", update="hub")
    with pytest.raises(BadInput, match="update runs at the worker"):
        C10dSession.open("test", plan=plan, tensors=specs())
    with pytest.raises(BadInput, match="leave the pass 'sparsify' out"):
        C10dSession.open("test", plan=replace(plan, keep=0.5), tensors=specs())


@pytest.mark.parametrize("world", [2, 3])
def test_means_arrive_for_every_policy_in_any_order(world: int) -> None:
    with ranks(world, everything, gloo=True) as group:
        group.results(90)


def lose_a_peer(rank: int, size: int) -> None:
    pulse.SILENT = 3.0
    plan = make_plan(profile(), Cluster.uniform(workers=size, link=Link(startup=5e-5, bandwidth=1e8)), "dear")
    session = C10dSession.open("test", plan=plan, tensors=specs())
    reach("open")
    step = 0
    while True:
        step += 1
        session.begin(step)
        held = [torch.ones(n, dtype=t) for n, t in zip(SIZES, TYPES, strict=True)]
        for tensor, grad in enumerate(held):
            session.submit(tensor, step, grad.data_ptr() if grad.numel() else 0)
        session.backward_done(step)
        session.wait(range(len(SIZES)), step)


@pytest.mark.parametrize(
    ("sign", "word"), [(signal.SIGKILL, "collective .* the store has gone"), (signal.SIGSTOP, "the store that the")]
)
def test_a_peer_that_is_killed_or_falls_silent_ends_the_wait(sign: signal.Signals, word: str) -> None:
    """Rank 0 keeps the store, so that its silence is the store's."""
    with ranks(2, lose_a_peer, gloo=True) as group:
        group.wait_for("open", within=60)
        group.kill(0, sign)
        assert group.errors(within=12) == {1: PeerLost}
        assert re.search(word, group.messages()[1])


class AsMpis:
    """A backend without options: asking for them raises, as Backend's own getter does."""

    @property
    def options(self) -> Any:
        raise RuntimeError("Backend mpi does not implement getBackendOptions, please implement in your subclass")


@pytest.mark.parametrize(
    ("backend", "limit"),
    [
        (SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=7))), timedelta(seconds=7)),
        (SimpleNamespace(options=SimpleNamespace()), timedelta(minutes=30)),
        (AsMpis(), timedelta(minutes=30)),
    ],
)
def test_a_backend_without_a_timeout_gets_torchs(
    backend: Any, limit: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = SimpleNamespace(_get_backend=lambda device: backend)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_group", lambda: group)
    assert time_limit(torch.device("cpu")) == limit
