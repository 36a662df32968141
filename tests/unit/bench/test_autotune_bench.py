"""What `bench autotune` makes of its measurements."""

from __future__ import annotations

import pytest
from rich.console import Console

from dovetail.bench.autotune import Setup, recovered
from dovetail.bench.orders import Workload
from dovetail.bench.result import AutotuneResult, StateResult, Times
from dovetail.bench.show import table_of
from dovetail.bench.stage import Site
from dovetail.errors import BadInput


def test_recovered_counts_the_steps_until_it_stays_fast() -> None:
    assert recovered([1.0] * 10, 1.2) == 0
    assert recovered([3.0, 3.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0], 1.2) == 3
    assert recovered([3.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0, 1.0], 1.2) == 4, "a relapse counts"
    assert recovered([1.0, 1.0, 1.0, 3.0, 3.0], 1.2) is None


def test_impossible_setups_are_refused() -> None:
    workload, site = Workload(model="vgg19", scale=0.01, compute=0.0), Site(workers=8, rate=25e6)
    for wrong in ({"cut": 1.0}, {"cut": 0.0}, {"grace": 40, "steps": 40}):
        with pytest.raises(BadInput, match="give a cut between 0 and 1"):
            Setup(workload=workload, site=site, **wrong)
    with pytest.raises(BadInput, match="3 or more, and a rate"):
        Setup(workload=workload, site=Site(workers=8, rate=0.0))


def test_the_table_shows_both_states_the_steady_network_and_the_balance() -> None:
    times = Times(median=0.5, min=0.4, max=0.6)
    rows = [
        StateResult(
            state=state,
            untuned_s=0.9,
            best_s=0.48,
            best="filled",
            tuned_s=times,
            of_best=0.96,
            recovered_after=after,
        )
        for state, after in (("cut", 9), ("restored", None))
    ]
    result = AutotuneResult(
        bench="autotune",
        model="vgg19",
        workers=8,
        rate=25e6,
        measured_rate=24e6,
        bytes=3_000_000,
        cut=0.4,
        grace=25,
        states=tuple(rows),
        steady_ratio=Times(median=1.01, min=0.99, max=1.02),
        balance=1.02,
    )
    console = Console(width=80, record=True)
    console.print(table_of(result))
    text = console.export_text()
    for part in ("until 90% of the best", "filled", "96%", "never", "tuned / untuned 1.010", "most / least: 1.020"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
