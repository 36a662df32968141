"""`policy="auto"` tries plans while training goes on: same results as DDP, one line that says what was kept."""

from __future__ import annotations

import contextlib
import io

from harness import ranks
from networks import OPTIMIZERS, ddp, dovetailed, same

from dovetail.network.model import Cluster
from dovetail.training import replanning, shutdown
from dovetail.training.opening import Opener

STEPS = 24  # two recorded, three candidates of five rounds, and some after the decision


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


def named(rank: int, size: int) -> list[tuple[str, bool]]:
    """The policies for which links were measured, and whether there are rates."""
    found: list[tuple[str, bool]] = []
    plain = replanning.measured

    def watched(opener: Opener, *, partners: int) -> Cluster:
        cluster = plain(opener, partners=partners)
        found.append((opener.setting.policy, all(host.link.bandwidth > 0 for host in cluster.workers)))
        return cluster

    replanning.measured = watched  # type: ignore[assignment]
    for policy in ("p3", "dear"):
        reference = ddp("mlp", lambda model: OPTIMIZERS["sgd"](model.parameters()))
        side = dovetailed("mlp", lambda model: OPTIMIZERS["sgd"](model.parameters()), policy=policy)
        for step in range(4):
            assert reference.step(step) == side.step(step)
        shutdown(side.model)
    return found


def test_links_are_measured_only_for_policies_that_weigh_them() -> None:
    with ranks(2, named, gloo=True) as group:
        assert group.results(120) == [[("dear", True)], [("dear", True)]]
