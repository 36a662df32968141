"""Bench results for people: progress while they are made, then a table; and the same as JSON for programs."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dovetail.bench.grid import GridResult, error_of, verdict
from dovetail.bench.planning import PlanningResult, growth
from dovetail.bench.probing import describe_groups
from dovetail.bench.result import (
    ENOUGH,
    AllreduceResult,
    AutotuneResult,
    OverheadResult,
    PullResult,
    RankResult,
    SystemResult,
    Times,
    TrainResult,
    UrgentResult,
)
from dovetail.errors import BadInput
from dovetail.plan.policies import AUTO
from dovetail.units import format_bytes, format_rate, format_seconds

Result = (
    TrainResult
    | GridResult
    | AllreduceResult
    | RankResult
    | UrgentResult
    | PullResult
    | OverheadResult
    | PlanningResult
    | AutotuneResult
)
ROOM = 13  # characters of a row's name beside which all columns fit a terminal


def train_table(result: TrainResult) -> Group:
    """Iteration times, speed-up over DDP if it took part, and the share of the physical bound."""
    title = (
        f"{result.model}, {format_bytes(result.bytes)}, {result.workers} workers, {format_rate(result.rate)} "
        f"(one stream gets {format_rate(result.measured_rate)}), compute {format_seconds(result.compute_s)}"
    )
    base = next((s.iteration_s.median for s in result.systems if s.name == "ddp"), None)
    columns: dict[str, Callable[[SystemResult], str]] = {
        "hosts": lambda s: str(s.machines),
        "iteration": lambda s: format_seconds(s.iteration_s.median),
        "vs DDP": lambda s: f"{base / s.iteration_s.median:.2f}x" if base else "",
        "predicted": lambda s: "" if s.predicted_s is None else format_seconds(s.predicted_s),
        "error": _error,
        "floor": lambda s: format_seconds(s.floor_s),
        "bound": lambda s: format_seconds(s.bound_s),
        "of bound": lambda s: f"{s.iteration_s.median / s.bound_s:.2f}x",
        "alpha": lambda s: "" if s.alpha is None else f"{s.alpha:.2f}",
        "idle": lambda s: f"{s.cpu_idle:.0%}",
    }
    best = result.predicted_best
    if best is not None:
        dropped = {"hosts", "floor", "alpha", "idle", "bound"}
    elif max(len(s.label) for s in result.systems) > ROOM:
        dropped = {"predicted", "error", "floor", "alpha"}
    else:
        dropped = {"predicted", "error"}
    shown = {name: cell for name, cell in columns.items() if name not in dropped}
    table = _table(("system",), tuple(shown))
    for s in result.systems:
        table.add_row(s.label, *(cell(s) for cell in shown.values()))
    group = _under(title, table, result.notes)
    return group if best is None else Group(group, Text(_verdict(best, result.measured_best)))


def _error(row: SystemResult) -> str:
    """How far the prediction lies from the measured time, of the measured time."""
    if row.predicted_s is None:
        return ""
    return f"{error_of(row):+.1%}"


def _verdict(predicted: SystemResult, measured: SystemResult) -> str:
    best = f"measured best: {measured.label}, {format_seconds(measured.iteration_s.median)}"
    if predicted is measured:
        return f"predicted best: {predicted.label}; {best}"
    more = predicted.iteration_s.median / measured.iteration_s.median - 1
    return f"predicted best: {predicted.label}, which took {more:.1%} longer than the best; {best}"


def grid_table(result: GridResult) -> Group:
    """A row for each model, rate and system, and what they say together."""
    table = _table(("model", "rate", "system"), ("iteration", "predicted", "error", "vs DDP"))
    for cell in result.cells:
        base = next((s.iteration_s.median for s in cell.systems if s.name == "ddp"), None)
        for number, row in enumerate(cell.systems):
            took = row.iteration_s.median
            table.add_row(
                *((cell.model, format_rate(cell.rate)) if number == 0 else ("", "")),
                row.label,
                format_seconds(took),
                "" if row.predicted_s is None else format_seconds(row.predicted_s),
                _error(row),
                f"{base / took:.2f}x" if base else "",
            )
    return Group(table, *(Text(line) for line in verdict(result)))


def allreduce_table(result: AllreduceResult) -> Group:
    """A row for each size and system."""
    stream = format_rate(result.measured_rate)
    title = f"sum over {result.workers} workers, {format_rate(result.rate)} (one stream gets {stream})"
    table = _table(("size", "system"), ("hosts", "time", "min to max", "bound", "of bound"))
    rows = [(size.nbytes, system, size) for system in result.systems for size in system.sizes]
    for nbytes, system, size in sorted(rows, key=lambda row: row[0]):
        table.add_row(
            format_bytes(nbytes),
            system.name if system.name != AUTO else f"{AUTO}: {size.pattern}",
            str(system.machines),
            format_seconds(size.median_s),
            f"{format_seconds(size.min_s)} to {format_seconds(size.max_s)}",
            format_seconds(size.bound_s),
            f"{size.median_s / size.bound_s:.2f}x" if size.bound_s else "",
        )
    return _under(title, table, result.notes)


def rank_table(result: RankResult) -> Group:
    """The named orders, the random ones from the fastest to the slowest, and how the best compares."""
    title = (
        f"Gloo sums {format_bytes(result.nbytes)} over {result.workers} hosts, {format_rate(result.rate)}, "
        f"uplinks {format_rate(result.uplink)}"
    )
    table = _table(("order", "hosts by rank"), ("predicted", "time", "min to max"))
    named = [row for row in result.orders if row.name != "random"]
    drawn = sorted((row for row in result.orders if row.name == "random"), key=lambda row: row.sum_s.median)
    for row in (*named, *drawn):
        hosts = " ".join(map(str, row.hosts))
        table.add_row(
            row.name, hosts, format_seconds(row.predicted_s), format_seconds(row.sum_s.median), _range(row.sum_s)
        )
    best, worst, _ = (row.sum_s.median for row in named)
    usual = statistics.median(row.sum_s.median for row in drawn)
    lines = (
        describe_groups(result.groups, result.racks_found),
        f"best is {worst / best:.2f}x as fast as worst, {usual / best:.2f}x as the median of random",
        f"Spearman of predicted and measured: {result.spearman:.2f} over ten orders, {result.spearman_all:.2f} all",
    )
    return Group(_under(title, table, result.notes), *(Text(line) for line in lines))


def urgent_table(result: UrgentResult) -> Group:
    """Priority beside first in, first out."""
    small, large = format_bytes(result.small_bytes), format_bytes(result.large_bytes)
    title = f"the most urgent {small} at the peer while {large} travel, {format_rate(result.rate)}"
    table = _table(("order",), ("median", "min to max"))
    for order, times in (("by priority", result.priority_s), ("first in, first out", result.fifo_s)):
        table.add_row(order, format_seconds(times.median), _range(times))
    return _under(title, table, result.notes)


def pull_table(result: PullResult) -> Group:
    """A row for each order."""
    title = (
        f"{result.model}, {format_bytes(result.bytes)} pulled by {result.clients} clients at "
        f"{format_rate(result.rate)}, forward pass {format_seconds(result.compute_s)}"
    )
    table = _table(("order",), ("pull and pass", "min to max", "bound", "of bound"))
    for row in result.orders:
        over = f"{row.pass_s.median / result.bound_s:.2f}x"
        table.add_row(
            row.order, format_seconds(row.pass_s.median), _range(row.pass_s), format_seconds(result.bound_s), over
        )
    return _under(title, table, result.notes)


def overhead_table(result: OverheadResult) -> Group:
    """What is added to a plain step, in the calls and in all."""
    title = (
        f"{result.params} parameters, {format_bytes(result.bytes)}, {result.workers} workers, unshaped, "
        f"a step of {format_seconds(result.plain_s.median)}"
    )
    table = _table(("distributed, a step takes more",), ("median", "half of the pairs"))
    rows = (
        ("in submitting and waiting", result.calls),
        ("in all, with what the cores vary", result.wall),
        ("of all cores' time", result.cpu),
    )
    for name, added in rows:
        table.add_row(name, f"{added.median:+.1%}", f"{added.low:+.1%} to {added.high:+.1%}")
    return _under(title, table, result.notes)


def planning_table(result: PlanningResult) -> Group:
    """What planning took, and the curve over n log n."""
    rows = _table(("what",), ("parameters", "time"))
    for row in result.rows:
        rows.add_row(row.what, str(row.count), format_seconds(row.seconds))
    curve = _table(("resnet50, 512 workers",), ("transfers", "time", "ns / n log n"))
    for point, share in zip(result.curve, growth(result.curve), strict=True):
        curve.add_row(point.what, str(point.count), format_seconds(point.seconds), f"{share:.0f}")
    return Group(rows, curve)


def autotune_table(result: AutotuneResult) -> Group:
    """A row for each state after a change, then the steady network and the balance."""
    title = (
        f"{result.model}, {format_bytes(result.bytes)}, {result.workers} workers, {format_rate(result.rate)} "
        f"(one stream gets {format_rate(result.measured_rate)})\n"
        f"one link cut to {result.cut:.0%}, then restored; steps until {ENOUGH:.0%} of the best fixed shares"
    )
    table = _table(("state",), ("untuned", "fixed", "shares", "tuned", "min to max", "of best", "steps"))
    for row in result.states:
        table.add_row(
            row.state,
            format_seconds(row.untuned_s),
            format_seconds(row.best_s),
            row.best,
            format_seconds(row.tuned_s.median),
            _range(row.tuned_s),
            f"{row.of_best:.0%}",
            "never" if row.recovered_after is None else str(row.recovered_after),
        )
    ratio = result.steady_ratio
    steady = f"steady network: tuned / untuned {ratio.median:.3f} ({ratio.min:.3f} to {ratio.max:.3f})"
    return Group(
        _under(title, table, ()),
        Text(steady),
        Text(f"bytes that a rank sends at the end, most / least: {result.balance:.3f}"),
        *(Text(f"note: {note}") for note in result.notes),
    )


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Progress on standard error: a line that changes on a terminal, else one line a step."""
    console = Console(stderr=True)
    with console.status("starting") as status:
        yield status.update if console.is_terminal else lambda text: console.print(text, style="dim", highlight=False)


def table_of(result: Result) -> Group:
    """The table of any bench's result."""
    match result:
        case TrainResult():
            return train_table(result)
        case GridResult():
            return grid_table(result)
        case AllreduceResult():
            return allreduce_table(result)
        case RankResult():
            return rank_table(result)
        case UrgentResult():
            return urgent_table(result)
        case PullResult():
            return pull_table(result)
        case OverheadResult():
            return overhead_table(result)
        case PlanningResult():
            return planning_table(result)
        case AutotuneResult():
            return autotune_table(result)


def give(result: Result, json: str | None) -> None:
    """Print the result's table, and write it to the file `json` (- = standard output, the table then on the other)."""
    Console(stderr=json == "-").print(table_of(result))
    text = msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n"
    if json == "-":
        sys.stdout.write(text)
    elif json is not None:
        try:
            Path(json).write_text(text)
        except OSError as error:
            raise BadInput(f"cannot write {json}: {error.strerror}") from None


def _table(words: tuple[str, ...], figures: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _range(times: Times) -> str:
    return f"{format_seconds(times.min)} to {format_seconds(times.max)}"


def _under(title: str, table: Table, notes: tuple[str, ...]) -> Group:
    return Group(Text(title), table, *(Text(f"note: {note}") for note in notes))
