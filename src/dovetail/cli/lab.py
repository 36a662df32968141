"""`dovetail lab`: run a command on every host of a cluster in a box."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dovetail.lab import Lab, LabError, available, measure_rate
from dovetail.lab.run import run as run_everywhere
from dovetail.units import format_rate, parse_rate

Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="write the result; - = stdout")]


def register(app: typer.Typer) -> None:
    """Add the verb and its two commands."""
    lab = typer.Typer(no_args_is_help=True, help="Make a cluster in a box from network namespaces.")
    lab.command("run")(run)
    lab.command("check")(check)
    app.add_typer(lab, name="lab")


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD", help="what every host runs")],
    hosts: Annotated[int, typer.Option(help="worker hosts")] = 4,
    rate: Annotated[str, typer.Option(help="of each host's link, both ways; 0 = unshaped")] = "500mbit",
    hubs: Annotated[int | None, typer.Option(help="hosts that run `dovetail hub`, see DOVETAIL_HUBS")] = None,
    hub_rate: Annotated[str | None, typer.Option(help="of a hub's link (default: hosts x rate)")] = None,
    racks: Annotated[int, typer.Option(help="racks the hosts stand in")] = 1,
    uplink: Annotated[str, typer.Option(help="of each rack's link to the other racks; 0 = unshaped")] = "0",
    shuffle_hosts: Annotated[bool, typer.Option("--shuffle-hosts", help="number hosts across racks at random")] = False,
    seed: Annotated[int, typer.Option(help="of the shuffle")] = 0,
    json: Json = None,
) -> None:
    """Run CMD on every host with torchrun's environment; exit with the first failure's code.

    Example: dovetail lab run --hosts 4 --rate 500mbit -- python train.py
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Lab(
        hosts,
        parse_rate(rate),
        hubs=int(hub_rate is not None) if hubs is None else hubs,
        hub_rate=None if hub_rate is None else parse_rate(hub_rate),
        racks=racks,
        uplink=parse_rate(uplink),
        shuffle_seed=seed if shuffle_hosts else None,
    ) as lab:
        code = run_everywhere(lab, command, out=sys.stderr if json == "-" else sys.stdout)
        _write(json, {"layout": msgspec.to_builtins(lab.layout), "command": command, "exit_code": code})
    raise typer.Exit(code)


def check(
    rate: Annotated[str, typer.Option(help="of the links to try; 0 = unshaped")] = "500mbit", json: Json = None
) -> None:
    """Say whether a lab can be made here, and what a plain TCP stream gets on a link of it.

    Example: dovetail lab check --rate 500mbit
    """
    allowed, reason = available()
    if not allowed:
        raise LabError(reason)
    with Lab(2, parse_rate(rate)) as lab:
        measured = measure_rate(lab, 0, 1)
    print(f"a lab can be made here; one TCP stream gets {format_rate(measured)} of {rate}", file=sys.stderr)
    _write(json, {"available": True, "rate": parse_rate(rate), "measured_rate": measured})


def _write(path: str | None, result: object) -> None:
    text = msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n"
    if path == "-":
        sys.stdout.write(text)
    elif path is not None:
        Path(path).write_text(text)
