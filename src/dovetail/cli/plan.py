"""`dovetail plan`: a profile and a cluster become plan.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Link
from dovetail.plan.base import name_of
from dovetail.plan.policies import AUTO, make_plan, policies
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile
from dovetail.units import format_bytes, parse_rate, parse_seconds

SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("plan", no_args_is_help=True)(plan)


def plan(
    profile: Annotated[Path | None, typer.Argument(help="profile.json of `dovetail trace`.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="cluster.json of `dovetail network`.")] = None,
    workers: Annotated[int, typer.Option(help="Equal workers, instead of --cluster.")] = 0,
    rate: Annotated[str, typer.Option(help="Their links, e.g. 500mbit.")] = "1gbit",
    startup: Annotated[str, typer.Option(help="Startup of one transfer.")] = "50us",
    hubs: Annotated[int, typer.Option(help="Dedicated hubs with the same links.")] = 0,
    policy: Annotated[str, typer.Option(help="A policy, 'auto', or 'list' to see them all.")] = "tac",
    aggregation: Annotated[str | None, typer.Option(help="Pattern, e.g. shuffle, hub, ring.")] = None,
    update: Annotated[str | None, typer.Option(help="Where the optimizer runs: worker or hub.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="A pass to leave out; may be given again.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan here.")] = None,
    json: Annotated[Path | None, typer.Option(help="The same as -o; `-` = standard output.")] = None,
) -> None:
    """Decide when every gradient and parameter travels.

    Example: dovetail plan profile.json --workers 4 --rate 500mbit --policy tac -o plan.json
    """
    console = Console(stderr=json is not None and str(json) == "-")
    if policy == "list":
        console.print(_list())
        return
    if profile is None:
        raise BadInput("no profile was given; name the profile.json that `dovetail trace` wrote")
    traced = codec.load(Profile, profile)
    network = codec.load(Cluster, cluster) if cluster else _uniform(workers, rate, startup, hubs)
    if policy == AUTO:
        if aggregation or update or without:
            raise BadInput("policy 'auto' chooses aggregation, update and passes itself; leave those options out")
        made = _auto(traced, network, console)
    else:
        made = make_plan(traced, network, policy, aggregation=aggregation, update=update, without=tuple(without or ()))
    console.print(_summary(made))
    for path in (output, json):
        if path is not None:
            codec.save(made, path)


def _uniform(workers: int, rate: str, startup: str, hubs: int) -> Cluster:
    if workers < 1:
        raise BadInput("no cluster was given; use --cluster FILE, or --workers N --rate 500mbit")
    bandwidth = parse_rate(rate) or float("inf")
    return Cluster.uniform(workers=workers, link=Link(startup=parse_seconds(startup), bandwidth=bandwidth), hubs=hubs)


def _auto(profile: Profile, cluster: Cluster, console: Console) -> Plan:
    from dovetail.plan.auto import choose
    from dovetail.simulate.run import simulate  # only auto needs the simulator

    best, tried = choose(profile, cluster, simulate)
    table = Table("candidate", "predicted iteration", title="auto")
    for name, seconds in tried:
        table.add_row(name, f"{seconds * 1e3:.2f} ms")
    console.print(table)
    return best


def _list() -> Table:
    table = Table("policy", "passes", "what it does")
    for name, entry in policies().items():
        table.add_row(name, " > ".join(map(name_of, entry.passes)), entry.about)
    table.add_row(AUTO, "", "simulates the useful combinations and takes the best")
    return table


def _summary(made: Plan) -> Table:
    bar = "the next forward pass waits for all" if made.barrier else "each op waits for its own parameters"
    table = Table(
        "#", "kind", "window", "bytes", "depth", "parameters",
        title=f"{made.policy}: {len(made.transfers)} transfers, {format_bytes(made.nbytes)} of parameters, "
        f"{made.aggregation}, update at {made.update}; {bar}; {len(made.edges)} ordering edges",
    )  # fmt: skip
    for t in sorted(made.transfers, key=lambda t: t.priority)[:SHOWN]:
        names = ", ".join(t.params[:3]) + (f" and {len(t.params) - 3} more" if len(t.params) > 3 else "")
        table.add_row(str(t.priority), t.kind, t.window, format_bytes(t.nbytes), str(t.depth), names)
    if len(made.transfers) > SHOWN:
        table.add_row("...", "", "", "", "", f"{len(made.transfers) - SHOWN} more")
    return table
