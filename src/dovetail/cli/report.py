"""`dovetail report`: saved timelines as a table, a page or a Chrome trace."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import typer

from dovetail.errors import BadInput
from dovetail.report import chrome, html, text
from dovetail.report.runs import load_runs
from dovetail.report.summary import summarize


def report(
    runs: list[Path] = typer.Argument(..., metavar="RUN", help="Timeline files, or directories that hold some."),
    output: str = typer.Option(
        "-", "-o", "--output", metavar="FILE", help="out.html: a page; out.json: a Chrome trace; -: a table on stdout."
    ),
    figures: str = typer.Option("", "--json", metavar="FILE", help="Also write the figures as JSON (- = stdout)."),
    title: str = typer.Option("dovetail report", help="The page's title."),
) -> None:
    """Show saved timelines under each other; speed-ups are over the first.

    Example: dovetail report runs/ddp.json runs/hub.json -o report.html

    The page needs nothing but a browser; the trace opens in https://ui.perfetto.dev.
    """
    timelines = load_runs(runs)
    summaries = [summarize(timeline, name=name) for name, timeline in timelines.items()]
    if output.endswith((".html", ".htm")):
        _write(output, html.render(timelines, title=title))
    elif output.endswith(".json"):
        _write(output, chrome.render(timelines))
    elif output != "-":
        raise BadInput(f"output {output!r} is of no known kind; call it something.html or something.json, or -")
    elif figures != "-":
        print(text.render(summaries))
    if figures:
        _write(figures, msgspec.json.format(msgspec.json.encode(summaries), indent=1).decode())


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("report")(report)


def _write(path: str, content: str) -> None:
    if path == "-":
        sys.stdout.write(content + "\n")
        return
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
