"""Planning times: the profiles are what they claim to be, and the curve is held against n log n."""

from __future__ import annotations

import pytest
from rich.console import Console

from dovetail.bench.planning import PlanningResult, growth, transformer
from dovetail.bench.result import Timing
from dovetail.bench.show import table_of


def test_the_transformer_has_as_many_parameters_as_asked_for() -> None:
    profile = transformer(1000)
    assert (len(profile.params), len(profile.ops)) == (1000, 2000)
    assert profile.compute_time == pytest.approx(0.5)


def test_a_curve_of_n_log_n_is_flat_and_a_square_is_not() -> None:
    points = [(8, 24.0), (64, 384.0)]
    flat = growth(tuple(Timing(what="", count=n, seconds=s) for n, s in points))
    assert flat[0] == pytest.approx(flat[1])
    steep = growth(tuple(Timing(what="", count=n, seconds=float(n * n)) for n, _ in points))
    assert steep[1] > 2 * steep[0]


def test_the_table_shows_both() -> None:
    timing = Timing(what="auto, resnet152", count=156, seconds=1.5)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table_of(PlanningResult(bench="planning", rows=(timing,), curve=(timing,))))
    assert "auto, resnet152" in captured.get()
    assert "ns / n log n" in captured.get()
