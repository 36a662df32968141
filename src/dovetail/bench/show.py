"""Bench results for people: progress while they are made, then a table; and the same as JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dovetail.bench.result import AllreduceResult, Times, TrainResult, UrgentResult
from dovetail.errors import BadInput
from dovetail.units import format_bytes, format_rate, format_seconds


def train_table(result: TrainResult) -> Group:
    """Iteration times, speed-up over DDP if it took part, and the share of the physical bound."""
    title = (
        f"{result.model}, {format_bytes(result.bytes)}, {result.workers} workers, {format_rate(result.rate)} "
        f"(one stream gets {format_rate(result.measured_rate)}), compute {format_seconds(result.compute_s)}"
    )
    names = ("hosts", "iteration", "vs DDP", "floor", "bound", "of bound", "alpha", "idle")
    table = _table(("system",), names)
    base = next((s.iteration_s.median for s in result.systems if s.name == "ddp"), None)
    for s in result.systems:
        table.add_row(
            f"{s.name} ({s.variant})",
            str(s.machines),
            format_seconds(s.iteration_s.median),
            f"{base / s.iteration_s.median:.2f}x" if base else "",
            format_seconds(s.floor_s),
            format_seconds(s.bound_s),
            f"{s.iteration_s.median / s.bound_s:.2f}x",
            "" if s.alpha is None else f"{s.alpha:.2f}",
            f"{s.cpu_idle:.0%}",
        )
    return _under(title, table, result.notes)


def allreduce_table(result: AllreduceResult) -> Group:
    """A row for each size and system."""
    stream = format_rate(result.measured_rate)
    title = f"sum over {result.workers} workers, {format_rate(result.rate)} (one stream gets {stream})"
    table = _table(("size", "system"), ("hosts", "time", "min to max", "bound", "of bound"))
    rows = [(size.nbytes, system, size) for system in result.systems for size in system.sizes]
    for nbytes, system, size in sorted(rows, key=lambda row: row[0]):
        table.add_row(
            format_bytes(nbytes),
            system.name,
            str(system.machines),
            format_seconds(size.median_s),
            f"{format_seconds(size.min_s)} to {format_seconds(size.max_s)}",
            format_seconds(size.bound_s),
            f"{size.median_s / size.bound_s:.2f}x" if size.bound_s else "",
        )
    return _under(title, table, result.notes)


def urgent_table(result: UrgentResult) -> Group:
    """Priority beside first in, first out."""
    small, large = format_bytes(result.small_bytes), format_bytes(result.large_bytes)
    title = f"the most urgent {small} at the peer while {large} travel, {format_rate(result.rate)}"
    table = _table(("order",), ("median", "min to max"))
    for order, times in (("by priority", result.priority_s), ("first in, first out", result.fifo_s)):
        table.add_row(order, format_seconds(times.median), _range(times))
    return _under(title, table, result.notes)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Progress on standard error: a line that changes on a terminal, else one line a step."""
    console = Console(stderr=True)
    with console.status("starting") as status:
        yield status.update if console.is_terminal else lambda text: console.print(text, style="dim", highlight=False)


def give(result: TrainResult | AllreduceResult | UrgentResult, json: str | None) -> None:
    """Print the result's table, and write it to the file `json` (- = standard output, the table then on the other)."""
    if isinstance(result, TrainResult):
        table = train_table(result)
    elif isinstance(result, AllreduceResult):
        table = allreduce_table(result)
    else:
        table = urgent_table(result)
    Console(stderr=json == "-").print(table)
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
