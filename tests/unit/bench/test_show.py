"""Tables for people fit a terminal and say what the figures say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from dovetail.bench.result import (
    AllreduceResult,
    ReduceResult,
    SizeResult,
    SystemResult,
    Times,
    TrainResult,
    UrgentResult,
)
from dovetail.bench.show import allreduce_table, give, train_table, urgent_table
from dovetail.errors import BadInput

TIMES = Times(median=1.25, min=1.0, max=1.5)


def system(name: str, median: float, alpha: float | None) -> SystemResult:
    times = Times(median=median, min=median, max=median)
    return SystemResult(
        name=name, variant="p3", machines=5, workers=4, iteration_s=times, floor_s=0.512, bound_s=1.05, alpha=alpha,
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


def test_the_other_tables_show_every_row() -> None:
    size = SizeResult(nbytes=4096, median_s=2e-3, min_s=1e-3, max_s=3e-3, bound_s=1e-3)
    reduced = ReduceResult(name="hub", machines=5, sizes=(size, size))
    whole = AllreduceResult(bench="allreduce", workers=4, rate=0.0, measured_rate=1e9, systems=(reduced,))
    assert sum("2.00x" in line for line in lines(allreduce_table(whole))) == 2
    assert sum("1.25 s" in line for line in lines(urgent_table(URGENT))) == 2


def test_json_goes_to_the_file_or_the_user_is_told(tmp_path: Path) -> None:
    give(URGENT, str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text())["fifo_s"]["median"] == 1.25
    with pytest.raises(BadInput, match="cannot write"):
        give(URGENT, str(tmp_path / "no" / "such" / "folder.json"))
