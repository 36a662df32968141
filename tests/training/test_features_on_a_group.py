"""The features of test_semantics.py and test_features.py once more, on the process group's own collectives."""

from __future__ import annotations

import pytest
import scenarios_checkpoint
import scenarios_features
import scenarios_graphs
import scenarios_loop
import scenarios_more
import scenarios_state
from harness import ranks
from networks import over_process_group, run_all

from dovetail.engine.session import Session

MODULES = (
    scenarios_loop, scenarios_more, scenarios_state, scenarios_features, scenarios_graphs, scenarios_checkpoint
)  # fmt: skip
AT_AN_AGGREGATOR = {
    "clipping_at_the_aggregator_is_refused",
    "state_is_found_without_gradients",
    "uneven_inputs_at_the_aggregator_are_refused",
    "what_the_aggregator_cannot_do_is_refused",
}
WITH_LATE_RESULTS = {  # they wait for none, which only a rate makes certain, and a process group has none
    "clipping_that_does_not_wait_for_results",
    "compiled_models",
    "every_read_sees_the_step",
    "state_dicts_in_mid_flight",
    "steps_do_not_wait_under_any_of_it",
    "steps_return_before_their_results_are_there",
    "timelines_show_the_run",
    "zero_grad_does_not_wait",
}
IN_ANOTHER_FILE = {"bad_arguments_are_refused", "every_policy_trains_alike"}  # test_process_group_engine.py
LEFT_OUT = AT_AN_AGGREGATOR | WITH_LATE_RESULTS | IN_ANOTHER_FILE
EVERY = [function for code in MODULES for function in code.ALL]
SCENARIOS = [function for function in EVERY if function.__name__ not in LEFT_OUT]


def run(rank: int, size: int) -> dict[str, str]:
    with over_process_group(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "open", None)  # a scenario that goes around the group fails
        return run_all(SCENARIOS)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    with ranks(2, run, gloo=True) as group:
        return group.results(170)


@pytest.mark.parametrize("name", [function.__name__ for function in SCENARIOS])
def test_scenario(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert not outcome[name], f"rank {rank}:\n{outcome[name]}"


def test_what_is_left_out_exists() -> None:
    assert {function.__name__ for function in EVERY} >= LEFT_OUT
