"""Every pattern trains as DDP does, also where the ranks find their groups or the pattern themselves."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from harness import ranks
from networks import OPTIMIZERS, Side, ddp, dovetailed

from dovetail.engine.session import Options
from dovetail.training import shutdown

STEPS = 6
CASES: dict[str, dict[str, Any]] = {
    **{name: {"aggregation": name} for name in ("shuffle", "ring", "halving-doubling", "tree", "bcube")},
    "given groups": {"aggregation": "two-level", "options": Options(groups=((0, 3), (1, 2)))},
    "found groups": {"aggregation": "two-level"},
    "dear over groups": {"aggregation": "two-level", "policy": "dear", "options": Options(groups=((0, 3), (1, 2)))},
    "dear in a ring": {"policy": "dear"},
    "ibatch in a ring": {"policy": "ibatch"},
    "auto": {"aggregation": "auto"},
    "auto at the aggregator": {"aggregation": "auto", "update": "hub"},
}


def _train(side: Side) -> list[float]:
    return [side.step(step) for step in range(STEPS)]


def compare(rank: int, size: int) -> dict[str, Any]:
    """DDP's losses, and by case ours, the weights at the end, and what was printed."""

    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS["sgd"](model.parameters())

    found: dict[str, Any] = {"ddp": _train(ddp("mlp", make))}
    for name, options in CASES.items():
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            side = dovetailed("mlp", make, **options)
        losses = _train(side)
        weights = torch.cat([p.detach().flatten() for p in side.model.parameters()])
        found[name] = (losses, weights, printed.getvalue())
        shutdown(side.model)
    return found


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, Any]]:
    with ranks(4, compare, gloo=True) as group:
        return group.results(150)


@pytest.mark.parametrize("case", CASES)
def test_losses_are_ddps_and_ranks_agree_to_the_bit(on_four: list[dict[str, Any]], case: str) -> None:
    for found in on_four:
        losses, weights, _ = found[case]
        assert max(abs(a - b) for a, b in zip(found["ddp"], losses, strict=True)) < 1e-5
        assert torch.equal(weights, on_four[0][case][1])


def test_one_line_says_what_was_found(on_four: list[dict[str, Any]]) -> None:
    found = on_four[0]["found groups"][2]
    assert found.startswith("dovetail: two-level found ")
    assert found.count("\n") == 1
    assert on_four[0]["auto"][2].startswith("dovetail: aggregation auto takes ")
    assert on_four[0]["given groups"][2] == "", "nothing is probed where the groups are given"
    assert all(rank[case][2] == "" for rank in on_four[1:] for case in CASES), "one rank speaks for all"


def test_an_aggregator_that_updates_narrows_the_choice(on_four: list[dict[str, Any]]) -> None:
    assert on_four[0]["auto at the aggregator"][2].startswith("dovetail: aggregation auto takes shuffle")
