"""Masters move in mid-training, and the weights are DDP's all the same."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from harness import ranks
from networks import OPTIMIZERS, ddp, dovetailed

from dovetail.engine.session import Options
from dovetail.errors import BadInput
from dovetail.report.summary import summarize
from dovetail.timeline import DECIDE
from dovetail.training import shutdown, timeline
from dovetail.training import tuning as machine

STEPS = 40  # how many of them bring a decision depends on how rounds happen to last
GROUPS = Options(groups=((0, 3), (1, 2)), chunk_bytes=1024)
CASES: dict[str, dict[str, Any]] = {
    "shuffle": {"options": Options(chunk_bytes=1024)},
    "two-level": {"aggregation": "two-level", "options": GROUPS},
    "dear": {"policy": "dear", "options": Options(chunk_bytes=1024)},
}


def restless(rank: int, size: int) -> dict[str, Any]:
    """By case: DDP's losses and ours, the weights, what was printed, and how often masters moved."""

    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS["sgd"](model.parameters())

    # Nearly every round counts as a change, and tries suggest something else: more moves than any network makes.
    machine.CHANGED, machine.REFERENCE, machine.GAIN, machine.ALIKE = 1.0, 1, 100.0, 2.0
    turns = iter(range(1000))
    machine.quicktune = lambda rates, groups: tuple((0.4, 0.3, 0.3, 0.0)[(i + next(turns) // 4) % 4] for i in range(4))
    reference = ddp("mlp", make)
    found: dict[str, Any] = {"ddp": [reference.step(step) for step in range(STEPS)]}
    for name, options in CASES.items():
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            side = dovetailed("mlp", make, autotune=True, trace=True, **options)
            losses = [side.step(step) for step in range(STEPS)]
        line = timeline(side.model)
        weights = torch.cat([p.detach().flatten() for p in side.model.parameters()])
        moved = [span for span in line.spans if span.lane == DECIDE]
        found[name] = (losses, weights, printed.getvalue(), len(moved), summarize(line).notes)
        shutdown(side.model)
    with contextlib.suppress(BadInput):
        dovetailed("mlp", make, autotune=True, aggregation="ring")
        found["ring"] = "not refused"
    with contextlib.suppress(BadInput):
        dovetailed("mlp", make, autotune=True, update="hub")
        found["hub"] = "not refused"
    return found


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, Any]]:
    with ranks(4, restless, gloo=True) as group:
        return group.results(150)


@pytest.mark.parametrize("case", CASES)
def test_losses_are_ddps_whoever_masters_what(on_four: list[dict[str, Any]], case: str) -> None:
    for found in on_four:
        losses, weights, _, moved, _ = found[case]
        assert max(abs(a - b) for a, b in zip(found["ddp"], losses, strict=True)) < 1e-5
        assert torch.equal(weights, on_four[0][case][1])
        assert moved == on_four[0][case][3] >= 3, "masters have moved, and on all ranks alike"


def test_decisions_are_said_once_and_seen_in_the_report(on_four: list[dict[str, Any]]) -> None:
    _, _, printed, moved, notes = on_four[0]["shuffle"]
    assert printed.count("dovetail: autotune before round ") == moved
    assert "quicktune tries shares of " in printed
    assert all(found["shuffle"][2] == "" for found in on_four[1:])
    assert sum("quicktune tries shares of" in note for note in notes) >= 1


def test_what_has_no_masters_to_move_is_refused(on_four: list[dict[str, Any]]) -> None:
    assert all("ring" not in found and "hub" not in found for found in on_four)
