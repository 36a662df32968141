"""`policy="auto"` tries plans while training goes on: same results as DDP, one line that says what was kept."""

from __future__ import annotations

import contextlib
import io

from harness import ranks
from networks import OPTIMIZERS, ddp, dovetailed, same

from dovetail.training import shutdown

STEPS = 24  # two recorded, three candidates of four rounds and one between, and some after the decision


def auto(rank: int, size: int) -> tuple[str, list[bool]]:
    """What was printed, and for each place of the update whether weights and losses are DDP's."""
    equal = []
    printed = io.StringIO()
    for update in ("worker", "hub"):
        reference = ddp("mlp", lambda model: OPTIMIZERS["sgd"](model.parameters()))
        wanted = [reference.step(step) for step in range(STEPS)]
        with contextlib.redirect_stderr(printed):
            side = dovetailed("mlp", lambda model: OPTIMIZERS["sgd"](model.parameters()), policy="auto", update=update)
            found = [side.step(step) for step in range(STEPS)]
        same(reference.model.state_dict(), side.model.state_dict())
        equal.append(wanted == found)
        shutdown(side.model)
    return printed.getvalue(), equal


def test_auto_changes_plans_and_never_results() -> None:
    with ranks(2, auto, gloo=True) as group:
        (line, first), (silent, second) = group.results(120)
    assert first == second == [True, True]
    assert line.count("dovetail: auto keeps ") == 2
    assert "an iteration, predicted" in line
    assert silent == "", "one rank speaks for all"
