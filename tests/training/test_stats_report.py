"""`dovetail.stats()` on real ranks: it names the late one, counts what was sent, and serves it to Prometheus."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import free_port, ranks
from networks import Mlp
from torch import nn

import dovetail
from dovetail.errors import BadInput
from dovetail.training.reporting import PORT

STEPS, LATE = 30, 0.04


def train(rank: int, size: int, port: int) -> dict[str, Any]:
    model = Mlp(256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(BadInput, match="0 models are distributed"):
        dovetail.stats()
    dovetail.distribute(model, optimizer, rate=20e6)
    for _ in range(STEPS):
        if rank == 1:
            time.sleep(LATE)  # a slow loader, say
        iterate(model, optimizer)
    with urllib.request.urlopen(f"http://127.0.0.1:{port + rank}/metrics", timeout=10) as page:
        text = page.read().decode()
    model.state_dict()  # all means are here when it returns,
    dist.barrier()  # and there: nothing is left to send
    found = dovetail.stats()
    size_of = sum(p.numel() * p.element_size() for p in model.parameters())
    dovetail.shutdown(model)
    dovetail.distribute(model, optimizer, engine="c10d")
    for _ in range(3):
        iterate(model, optimizer)
    model.state_dict()  # complete when it returns
    over_gloo = dovetail.stats(model)
    dovetail.shutdown(model)
    return {"stats": found, "text": text, "bytes": size_of, "over_gloo": over_gloo}


def iterate(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(8, 8)), torch.zeros(8, 3)).backward()
    optimizer.step()


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    port = next(p for p in (free_port() for _ in range(100)) if p < 65000)
    with ranks(2, train, args=(port,), gloo=True, env={PORT: str(port)}) as group:
        return group.results(120)


def test_both_ranks_name_the_late_one(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        stats = outcome["stats"]
        assert stats.straggler == 1
        assert LATE / 2 < stats.lateness[1] < 20 * LATE
        assert "rank 1 +" in str(stats)
    # The barrier between iterations hides who is late: both take as long.
    quick, slow = (outcome["stats"] for outcome in outcomes)
    assert quick.iteration_s > LATE
    assert quick.exposed_s > slow.exposed_s


def test_what_was_sent_is_counted_by_priority(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        stats = outcome["stats"]
        assert stats.iterations == STEPS
        # Each rank sends half its gradients, and the means of the other half.
        assert sum(stats.sent.values()) == STEPS * outcome["bytes"]
        assert len(stats.sent) > 2
        assert 0 < stats.communication_total_s < 60
        assert stats.replans in (0, 1)


def test_a_process_groups_collectives_are_counted_as_well(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        stats = outcome["over_gloo"]
        assert (stats.iterations, stats.world) == (3, 2)
        assert sum(stats.sent.values()) == 3 * outcome["bytes"]  # what a ring sends
        assert stats.communication_total_s > 0


def test_prometheus_finds_it_on_a_port_of_each_rank(outcomes: list[dict[str, Any]]) -> None:
    for rank, outcome in enumerate(outcomes):
        assert f'rank="{rank}"}} {float(STEPS)}' in outcome["text"]
        assert "dovetail_lateness_seconds{" in outcome["text"]
        assert "dovetail_sent_bytes_total{" in outcome["text"]


def test_a_port_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.training import reporting

    monkeypatch.setenv(PORT, "http")
    with pytest.raises(BadInput, match="DOVETAIL_METRICS_PORT is 'http'"):
        reporting.serve_if_asked()
