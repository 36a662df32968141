"""`dovetail demo`: DDP and dovetail train on one slow network; a table says how fast, a page shows why."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dovetail.cli.output import write_json, write_text
from dovetail.errors import BadInput
from dovetail.report import html
from dovetail.report.runs import load_runs
from dovetail.report.text import table
from dovetail.timeline import Timeline
from dovetail.units import format_rate, format_seconds, parse_rate

if TYPE_CHECKING:
    from dovetail.bench.result import TrainResult

TITLES = {"ddp": "PyTorch DDP", "sharded": "dovetail, shards on the workers", "hub": "dovetail, dedicated hub"}
WORKERS, ITERATIONS, MODEL, SCALE = 4, 8, "vgg19", 1 / 16


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("demo")(demo)


def demo(
    output: Path = typer.Option(Path("demo.html"), "-o", "--output", help="The page with the timelines."),
    rate: str = typer.Option("500mbit", help="Of each worker's link, both ways."),
    compute: float = typer.Option(0.5, min=0.0, help="Seconds that an emulated accelerator computes per iteration."),
    json_file: str = typer.Option("", "--json", metavar="FILE", help="Also write the figures as JSON (- = stdout)."),
) -> None:
    """Train on four workers with slow links: with PyTorch DDP, then with dovetail, and show the difference.

    Example: dovetail demo --rate 1gbit -o demo.html

    The layers are VGG-19's, a sixteenth in size. About two minutes.
    """
    # Here, not above: the bench brings torch, which help does not need.
    from dovetail.bench.orders import Workload
    from dovetail.bench.stage import Site
    from dovetail.bench.systems import chosen
    from dovetail.bench.train import Setup, bench_train

    site = Site(workers=WORKERS, rate=parse_rate(rate))
    if not site.rate:
        raise BadInput(f"rate {rate!r} sets no limit, and the demo is about slow links; write it like 500mbit")
    workload = Workload(model=MODEL, scale=SCALE, compute=compute)
    setup = Setup(workload=workload, systems=chosen(tuple(TITLES)), site=site, iterations=ITERATIONS)
    tell = _stopwatch()
    tell(f"{MODEL} at 1/{1 / SCALE:.0f} of its size on {WORKERS} workers, links of {format_rate(site.rate)}")
    with tempfile.TemporaryDirectory(prefix="dovetail-demo-") as folder:
        result = bench_train(setup, tell=tell, save=Path(folder))
        runs = load_runs([Path(folder) / f"{system.name}.json" for system in result.systems])
    write_text(str(output), html.render(_titled(result, runs), title="dovetail demo"))
    if json_file:
        write_json(json_file, result)
    print(render(result, runs), file=sys.stderr if json_file == "-" else sys.stdout)
    tell(f"{output} shows why")


def render(result: TrainResult, runs: Mapping[str, Timeline]) -> str:
    """The demo's table, and what was left out; speed-ups are over DDP where it took part."""
    ddp = next((s.iteration_s.median for s in result.systems if s.name == "ddp"), None)
    header = ["", "machines", "iteration", *(["over DDP"] if ddp else []), "of physical bound", "overlap alpha"]
    rows = [
        [
            TITLES[s.name],
            str(s.machines),
            format_seconds(s.iteration_s.median),
            *([f"{ddp / s.iteration_s.median:.2f}x"] if ddp else []),
            f"{s.bound_s / s.iteration_s.median:.0%}",
            f"{runs[s.name].alpha if s.alpha is None else s.alpha:.2f}",
        ]
        for s in result.systems
    ]
    return "\n".join([table(header, rows), *result.notes])


def _titled(result: TrainResult, runs: Mapping[str, Timeline]) -> dict[str, Timeline]:
    """What the page shows; the few iterations recorded for it are not those that were measured, so it says so."""
    measured = {
        s.name: f"measured before this recording: {format_seconds(s.iteration_s.median)}" for s in result.systems
    }
    return {TITLES[name]: replace(run, notes=(*run.notes, measured[name])) for name, run in runs.items()}


def _stopwatch() -> Callable[[str], None]:
    start = time.monotonic()
    return lambda what: print(f"{time.monotonic() - start:4.0f} s  {what}", file=sys.stderr, flush=True)
