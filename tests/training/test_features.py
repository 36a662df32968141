"""Everyday features on two ranks: as under DDP, or refused in one clear line."""

from __future__ import annotations

import pytest
import scenarios_checkpoint
import scenarios_features
import scenarios_graphs
from harness import ranks
from networks import run_all
from nodes import hub

SCENARIOS = scenarios_features.ALL + scenarios_graphs.ALL + scenarios_checkpoint.ALL


def run(rank: int, size: int, address: str) -> dict[str, str]:
    scenarios_checkpoint.HUB.append(address)
    return run_all(SCENARIOS)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    """All in one pair of processes: starting torch takes longer than most scenarios."""
    with hub() as server, ranks(2, run, gloo=True, args=(server.address,)) as group:
        return group.results(170)


@pytest.mark.parametrize("name", [function.__name__ for function in SCENARIOS])
def test_scenario(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert not outcome[name], f"rank {rank}:\n{outcome[name]}"
