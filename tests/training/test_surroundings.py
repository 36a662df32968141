"""Training amid what else a script does: contexts, transforms, workers, hooks, copies. As under DDP on two ranks."""

from __future__ import annotations

import pytest
import scenarios_contexts
import scenarios_hooks
import scenarios_optimizer
import scenarios_processes
import scenarios_unseen
from harness import ranks
from networks import run_all

MODULES = (scenarios_contexts, scenarios_processes, scenarios_hooks, scenarios_optimizer, scenarios_unseen)
SCENARIOS = [function for code in MODULES for function in code.ALL]


def run(rank: int, size: int) -> dict[str, str]:
    return run_all(SCENARIOS)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    """All in one pair of processes: starting torch takes longer than most scenarios."""
    with ranks(2, run, gloo=True) as group:
        return group.results(170)


@pytest.mark.parametrize("name", [function.__name__ for function in SCENARIOS])
def test_scenario(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert not outcome[name], f"rank {rank}:\n{outcome[name]}"
