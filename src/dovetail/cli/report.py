"""`dovetail report`: saved timelines as a table, a page or a Chrome trace."""

from __future__ import annotations

from pathlib import Path

import typer

from dovetail.cli.output import write_json, write_text
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
        write_text(output, html.render(timelines, title=title))
    elif output.endswith(".json"):
        write_text(output, chrome.render(timelines))
    elif output != "-":
        raise BadInput(f"output {output!r} is of no known kind; call it something.html or something.json, or -")
    elif figures != "-":
        print(text.render(summaries))
    if figures:
        write_json(figures, summaries)


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("report")(report)
