"""Training loops of all kinds on two ranks: as under DDP, or refused in one clear line."""

from __future__ import annotations

import pytest
import scenarios_loop
import scenarios_state
from harness import ranks
from networks import run_all

MODULES = {"scenarios_loop": scenarios_loop, "scenarios_state": scenarios_state}


def run(rank: int, size: int, module: str) -> dict[str, str]:
    return run_all(MODULES[module].ALL)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[dict[str, str]]]:
    found = {}
    for module in MODULES:
        with ranks(2, run, gloo=True, args=(module,)) as group:
            found[module] = group.results(150)
    return found


@pytest.mark.parametrize(("module", "name"), [(m, f.__name__) for m, code in MODULES.items() for f in code.ALL])
def test_scenario(outcomes: dict[str, list[dict[str, str]]], module: str, name: str) -> None:
    for rank, outcome in enumerate(outcomes[module]):
        assert not outcome[name], f"rank {rank}:\n{outcome[name]}"
