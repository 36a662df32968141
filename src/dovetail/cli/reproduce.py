"""`dovetail reproduce`: the papers' figures, computed again."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.reproduce.record import Reproduction, Study

PAPERS = ("tictac", "p3", "ibatch", "caramel", "hub")


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("reproduce")(reproduce)


def reproduce(
    paper: Annotated[str, typer.Argument(help=f"One of {', '.join(PAPERS)}, or all.")] = "all",
    json: Annotated[Path | None, typer.Option(help="Write the findings here; `-` = standard output.")] = None,
) -> None:
    """Repeat the headline experiments of the papers in the simulator, the paper's figure beside ours.

    Example: dovetail reproduce p3
    """
    if paper != "all" and paper not in PAPERS:
        raise BadInput(f"paper {paper!r} is unknown; it is one of {', '.join(PAPERS)}, or all")
    console = Console(stderr=json is not None and str(json) == "-")
    studies = []
    for name in PAPERS if paper == "all" else (paper,):
        study: Study = importlib.import_module(f"dovetail.reproduce.{name}").run()
        studies.append(study)
        console.print(_table(study))
        for number, assumption in enumerate(study.assumptions, start=1):
            console.print(f"assumed {number}: {assumption}", soft_wrap=True)
        console.print()
    if json is not None:
        codec.save(Reproduction(studies=tuple(studies)), json)


def _table(study: Study) -> Table:
    table = Table("where", "what", title=study.paper, box=None)
    for column in ("paper", "ours", "off"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in study.lines:
        paper = "" if line.paper is None else f"{line.paper:,.4g}"
        off = "" if line.off is None else f"{line.off:+.1%}"
        table.add_row(line.where, line.what, paper, f"{line.ours:,.4g} {line.unit}", off)
    return table
