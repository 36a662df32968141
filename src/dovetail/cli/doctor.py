"""`dovetail doctor`: one screen about this machine, with what to do about what is wrong."""

from __future__ import annotations

import os

import typer

from dovetail.cli.output import write_json
from dovetail.doctor import host
from dovetail.doctor.check import BROKEN, Check, guarded, show, usable


def doctor(
    facing: str = typer.Option("", metavar="HOST", help="A peer; its route decides which interface a job uses."),
    json: str | None = typer.Option(None, "--json", metavar="FILE", help="Write the findings (- = stdout)."),
) -> None:
    """Say what is installed, which interface is used and why, and whether priorities and overlap work here.

    Example: dovetail doctor --facing node2

    Takes some seconds: two ranks exchange data and train for a moment on loopback. Exit code 1 when one cannot train.
    """
    checks = examine(facing)
    if json != "-":
        print(show(checks))
        print("dovetail can train here" if usable(checks) else "dovetail cannot train here; see the lines marked NO")
    write_json(json, {"usable": usable(checks), "checks": checks})
    raise typer.Exit(0 if usable(checks) else 1)


def examine(facing: str) -> list[Check]:
    """All findings; those that run the engine are left out where a part of it is missing."""
    found = [host.versions(), host.interface(facing, os.environ), host.lab_rights()]
    if found[0].state == BROKEN:
        return found
    from dovetail.doctor.training import overlap
    from dovetail.doctor.urgent import priorities

    advice = "loopback must work for this: check that 127.0.0.1 is up and no firewall is in its way"
    return [*found, guarded("priorities", priorities, advice), guarded("overlap", overlap, advice)]


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("doctor")(doctor)
