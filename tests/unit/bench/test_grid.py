"""The grid's figures say how far predictions are off, what choosing by them costs, and how `auto` stands to DDP."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dovetail.bench.grid import GridResult, earlier, lost_by_choice, predicted_again, scale_for, verdict
from dovetail.bench.models import profile_of
from dovetail.bench.result import SystemResult, Times, TrainResult
from dovetail.bench.show import table_of
from dovetail.bench.systems import chosen
from dovetail.errors import BadInput


def row(name: str, policy: str, measured: float, predicted: float) -> SystemResult:
    return SystemResult(
        name=name, variant=policy, policy=policy, machines=4, workers=4, alpha=None, cpu_idle=0.5, floor_s=0.1,
        paced_s=0.1, bound_s=0.1, predicted_s=predicted, iteration_s=Times(median=measured, min=measured, max=measured),
    )  # fmt: skip


def cell(model: str, *rows: SystemResult) -> TrainResult:
    return TrainResult(
        bench="train", model=model, scale=1.0, workers=4, rate=62.5e6, measured_rate=6e7, bytes=10, compute_s=0.3,
        systems=rows,
    )  # fmt: skip


GOOD = cell("vgg19", row("ddp", "ddp", 1.0, 1.1), row("sharded", "p3", 0.5, 0.45), row("auto", "auto", 0.6, 0.1))
BAD = cell("gpt2", row("ddp", "ddp", 1.0, 0.8), row("sharded", "p3", 0.9, 0.9), row("auto", "auto", 1.01, 0.8))
GRID = GridResult(bench="grid", cells=(GOOD, BAD))


def test_errors_are_of_the_measured_time_and_auto_is_not_among_them() -> None:
    assert GRID.errors == pytest.approx([0.1, -0.1, -0.2, 0.0])


def test_a_choice_is_as_good_as_the_measured_time_of_what_was_predicted_best() -> None:
    assert lost_by_choice(GOOD) == 0.0
    assert lost_by_choice(BAD) == pytest.approx(1 / 9)
    assert GRID.well_chosen == 1


def test_auto_is_held_against_ddp_in_every_cell() -> None:
    assert GRID.auto_over_ddp == pytest.approx([0.6, 1.01])
    assert GridResult(bench="grid", cells=(cell("vgg19", row("sharded", "p3", 1.0, 1.0)),)).auto_over_ddp == []


def test_the_verdict_and_the_table_say_so() -> None:
    assert verdict(GRID) == [
        "4 predictions: error 10.0% in the median, 20.0% at worst",
        "the predicted best is the measured best or within 5 % of it in 1 of 2",
        "auto over DDP's iteration time: 0.80 in the median, 1.010 at worst",
    ]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table_of(GRID))
    lines = captured.get().splitlines()
    assert lines[1].split() == ["vgg19", "500", "Mbit/s", "ddp", "1", "s", "1.1", "s", "+10.0%", "1.00x"]
    assert not any("…" in line for line in lines)


def test_models_are_scaled_to_one_size() -> None:
    for model in ("vgg19", "inception_v3"):
        assert profile_of(model, compute=1.0, scale=scale_for(model, 10**7)).nbytes == pytest.approx(10**7, rel=1e-3)


def test_cells_of_an_earlier_run_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "grid.json"
    assert earlier(file) == ()
    file.write_bytes(msgspec.json.encode(GRID))
    assert earlier(file) == GRID.cells
    file.write_text("{}")
    with pytest.raises(BadInput, match="not a result of bench grid"):
        earlier(file)


def test_cells_with_rows_that_were_not_asked_for_are_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match=r"rows of auto as well; give --systems ddp,sharded,auto$"):
        predicted_again(GRID.cells, chosen(["ddp", "sharded"], ["p3"]))
