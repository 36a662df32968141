"""Training loops of all kinds on two ranks: as under DDP, or refused in one clear line."""

from __future__ import annotations

import pytest
import scenarios_loop
import scenarios_more
import scenarios_state
from harness import ranks
from networks import run_all

MODULES = {code.__name__: code for code in (scenarios_loop, scenarios_more, scenarios_state)}


def run(rank: int, size: int) -> dict[str, str]:
    return run_all([function for code in MODULES.values() for function in code.ALL])


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    """All in one pair of processes: starting torch takes longer than most scenarios."""
    with ranks(2, run, gloo=True) as group:
        return group.results(170)


@pytest.mark.parametrize("name", [function.__name__ for code in MODULES.values() for function in code.ALL])
def test_scenario(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert not outcome[name], f"rank {rank}:\n{outcome[name]}"
