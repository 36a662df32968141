"""`bench grid`: predicted beside measured iteration times over models and rates, and how far to trust predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dovetail.bench.models import FLOAT_BYTES, published
from dovetail.bench.predict import with_predictions
from dovetail.bench.result import SystemResult, TrainResult
from dovetail.bench.stage import Tell
from dovetail.bench.systems import System
from dovetail.bench.train import Setup, assembled, compared
from dovetail.errors import BadInput
from dovetail.plan.policies import AUTO
from dovetail.units import format_rate

BENCH = "grid"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridResult:
    """A cell for each model and rate, each a run of `bench train` with predictions."""

    bench: str
    cells: tuple[TrainResult, ...]

    @property
    def errors(self) -> list[float]:
        """Of each row of a named policy: how far the prediction lies from the measured time, of the measured time."""
        return [error_of(row) for cell in self.cells for row in named(cell)]

    @property
    def well_chosen(self) -> int:
        """Cells in which the row that was predicted best took at most 5 % longer than the measured best."""
        return sum(lost_by_choice(cell) <= 0.05 for cell in self.cells)

    @property
    def auto_over_ddp(self) -> list[float]:
        """Of each cell with both: the iteration time of `auto` over that of DDP with its best buckets."""
        return [ratio for cell in self.cells if (ratio := _auto_over_ddp(cell)) is not None]


def bench_grid(
    setup: Setup,
    *,
    models: Sequence[str],
    rates: Sequence[float],
    nbytes: int,
    before: Sequence[TrainResult] = (),
    tell: Tell = lambda _: None,
) -> Iterator[GridResult]:
    """Run the setup's systems with every model, scaled to `nbytes`, at every rate; the result so far, cell by cell.

    `before` are cells that stay; one that is measured again replaces the old one.
    """
    cells = {(cell.model, cell.rate): cell for cell in before}
    for rate in rates:
        say = _prefixed(tell, format_rate(rate))
        there = replace(setup, site=replace(setup.site, rate=rate))
        with assembled(there, tell=say) as cast:
            for model in models:
                workload = replace(setup.workload, model=model, scale=scale_for(model, nbytes))
                found = compared(replace(there, workload=workload), cast, tell=_prefixed(say, model))
                cells[model, rate] = found
                yield GridResult(bench=BENCH, cells=tuple(sorted(cells.values(), key=lambda c: (c.model, c.rate))))


def predicted_again(cells: Sequence[TrainResult], systems: Sequence[System]) -> GridResult:
    """What was measured before, beside what the simulator says about it now."""
    there = dict.fromkeys(row.name for cell in cells for row in cell.systems)
    missing = [name for name in there if name not in {system.name for system in systems}]
    if missing:
        raise BadInput(f"the cells have rows of {', '.join(missing)} as well; give --systems {','.join(there)}")
    return GridResult(bench=BENCH, cells=tuple(with_predictions(cell, systems) for cell in cells))


def _prefixed(tell: Tell, place: str) -> Tell:
    return lambda line: tell(f"{place}: {line}")


def earlier(path: Path) -> tuple[TrainResult, ...]:
    """The cells of a result that was written before; none where there is no file."""
    if not path.exists():
        return ()
    try:
        return msgspec.json.decode(path.read_bytes(), type=GridResult).cells
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInput(f"{path} is not a result of bench grid to add to: {error}") from None


def scale_for(model: str, nbytes: int) -> float:
    """The scale at which the model's parameters take about `nbytes`."""
    return nbytes / (FLOAT_BYTES * sum(layer.params for layer in published(model)))


def named(cell: TrainResult) -> list[SystemResult]:
    """The cell's rows but `auto`, which is one of the others under another name, or nearly."""
    return [row for row in cell.systems if row.policy != AUTO]


def error_of(row: SystemResult) -> float:
    """Positive where the prediction was too long."""
    assert row.predicted_s is not None
    return row.predicted_s / row.iteration_s.median - 1


def lost_by_choice(cell: TrainResult) -> float:
    """How much longer the predicted best took than the measured best, of the latter."""
    rows = named(cell)
    chosen = min(rows, key=lambda row: row.predicted_s or 0.0)
    return chosen.iteration_s.median / min(row.iteration_s.median for row in rows) - 1


def verdict(result: GridResult) -> list[str]:
    """What the grid says about predictions and about `auto`, a line each."""
    off = [abs(error) for error in result.errors]
    lines = [
        f"{len(off)} predictions: error {statistics.median(off):.1%} in the median, {max(off):.1%} at worst",
        f"the predicted best is the measured best or within 5 % of it in {result.well_chosen} of {len(result.cells)}",
    ]
    ratios = result.auto_over_ddp
    if ratios:
        lines.append(
            f"auto over DDP's iteration time: {statistics.median(ratios):.2f} in the median, {max(ratios):.3f} at worst"
        )
    return lines


def _auto_over_ddp(cell: TrainResult) -> float | None:
    ours = next((row for row in cell.systems if row.policy == AUTO), None)
    usual = next((row for row in cell.systems if row.name == "ddp"), None)
    return ours.iteration_s.median / usual.iteration_s.median if ours and usual else None
