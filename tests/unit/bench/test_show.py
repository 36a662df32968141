"""Tables for people fit a terminal and say what the figures say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from dovetail.bench.result import (
    AllreduceResult,
    Middle,
    OrderResult,
    OverheadResult,
    PullResult,
    ReduceResult,
    SizeResult,
    SystemResult,
    Times,
    TrainResult,
    UrgentResult,
)
from dovetail.bench.show import allreduce_table, give, overhead_table, pull_table, train_table, urgent_table
from dovetail.errors import BadInput

TIMES = Times(median=1.25, min=1.0, max=1.5)


def system(name: str, median: float, alpha: float | None, predicted: float | None = None) -> SystemResult:
    times = Times(median=median, min=median, max=median)
    return SystemResult(
        name=name, variant="p3", policy="p3", predicted_s=predicted, machines=5, workers=4,
        iteration_s=times, floor_s=0.512, paced_s=0.52, bound_s=1.05, alpha=alpha,
        cpu_idle=0.7,
    )  # fmt: skip


TRAIN = TrainResult(
    bench="train", model="inception_v3", scale=1.0, workers=4, rate=62.5e6, measured_rate=59e6, bytes=10**8,
    compute_s=1.0, systems=(system("ddp", 2.1, 0.5), system("sharded", 1.05, None)), notes=("on loopback",),
)  # fmt: skip
URGENT = UrgentResult(
    bench="urgent", rate=0.0, measured_rate=1e9, small_bytes=4096, large_bytes=10**8, priority_s=TIMES, fifo_s=TIMES
)


def lines(table: RenderableType) -> list[str]:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def test_the_train_table_compares_with_ddp_and_with_the_bound() -> None:
    text = lines(train_table(TRAIN))
    row = next(line for line in text if line.startswith("sharded"))
    assert row.split() == ["sharded", "(p3)", "5", "1.05", "s", "2.00x", "512", "ms", "1.05", "s", "1.00x", "70%"]
    assert text[-1].startswith("note: on loopback")
    assert not any("…" in line for line in text), "the table is too wide for 80 columns"


def test_predictions_stand_beside_what_was_measured_and_the_best_are_named() -> None:
    rows = (system("halving-doubling", 2.0, 0.5, 2.2), system("ddp", 1.0, None, 3.0), system("hub", 1.25, None, 1.0))
    text = lines(train_table(replace(TRAIN, systems=rows)))
    row = next(line for line in text if line.startswith("halving-doubling (p3)"))
    assert row.split()[2:] == ["2", "s", "0.50x", "2.2", "s", "+10.0%", "1.90x"]
    assert (
        " ".join(text)
        .replace("  ", " ")
        .endswith("predicted best: hub (p3), which took 25.0% longer than the best; measured best: ddp (p3), 1 s")
    )
    assert not any("…" in line for line in text)


def test_long_names_leave_columns_out_rather_than_be_cut() -> None:
    text = lines(train_table(replace(TRAIN, systems=(system("halving-doubling", 1.0, 0.5),))))
    assert any(line.startswith("halving-doubling (p3)") for line in text)
    assert not any("…" in line or "floor" in line for line in text)


def test_pulls_and_overheads_are_ratios() -> None:
    pulled = PullResult(
        bench="pull", model="vgg19", scale=1.0, clients=2, rate=0.0, measured_rate=1e9, bytes=10, compute_s=0.5,
        bound_s=0.5, orders=(OrderResult(order="tac", pass_s=TIMES),),
    )  # fmt: skip
    assert any("tac" in line and "2.50x" in line for line in lines(pull_table(pulled)))
    ratio = Middle.of([0.04, 0.01, 0.02, 0.03, 0.01])
    added = OverheadResult(
        bench="overhead", workers=2, params=200, bytes=10, plain_s=TIMES, calls=ratio, wall=ratio, cpu=ratio
    )  # fmt: skip
    assert sum("+2.0%" in line and "+1.0% to +3.0%" in line for line in lines(overhead_table(added))) == 3


def test_the_other_tables_show_every_row() -> None:
    size = SizeResult(nbytes=4096, pattern="hub", median_s=2e-3, min_s=1e-3, max_s=3e-3, bound_s=1e-3)
    reduced = ReduceResult(name="hub", machines=5, sizes=(size, size))
    whole = AllreduceResult(bench="allreduce", workers=4, rate=0.0, measured_rate=1e9, systems=(reduced,))
    assert sum("2.00x" in line for line in lines(allreduce_table(whole))) == 2
    assert sum("1.25 s" in line for line in lines(urgent_table(URGENT))) == 2


def test_json_goes_to_the_file_or_the_user_is_told(tmp_path: Path) -> None:
    give(URGENT, str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text())["fifo_s"]["median"] == 1.25
    with pytest.raises(BadInput, match="cannot write"):
        give(URGENT, str(tmp_path / "no" / "such" / "folder.json"))
