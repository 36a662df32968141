"""`dovetail plan`: a profile and a cluster become plan.json."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dovetail import codec
from dovetail.cli import passes as own
from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Link
from dovetail.plan.auto import choose
from dovetail.plan.describe import policy_list, summary
from dovetail.plan.policies import AUTO, plan_for_training
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile
from dovetail.units import format_seconds, parse_rate, parse_seconds


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("plan")(plan)


def plan(
    profile: Annotated[Path | None, typer.Argument(help="The profile.json of `dovetail trace`.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="The cluster.json of `dovetail network`.")] = None,
    workers: Annotated[int | None, typer.Option(help="Instead of --cluster: so many equal workers,")] = None,
    rate: Annotated[str, typer.Option(help="with links like 500mbit or 2gbit,")] = "1gbit",
    startup: Annotated[str, typer.Option(help="where each transfer first costs this,")] = "50us",
    hubs: Annotated[int, typer.Option(help="and so many dedicated hubs.")] = 0,
    policy: Annotated[str, typer.Option(help="A policy, `auto`, or `list` to see them all.")] = "tac",
    aggregation: Annotated[
        str | None, typer.Option(help="A pattern: shuffle, hub, ring, ...; default: as in training.")
    ] = None,
    update: Annotated[str | None, typer.Option(help="Where the optimizer runs: worker or hub.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="A pass to leave out; may be repeated.")] = None,
    passes: own.Passes = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write plan.json here.")] = None,
    json: Annotated[Path | None, typer.Option(help="The same as -o; `-` = standard output.")] = None,
) -> None:
    """Decide when every gradient and parameter travels.

    Example: dovetail plan profile.json --workers 4 --rate 500mbit --policy tac -o plan.json
    """
    quiet = "-" in (str(output), str(json))  # standard output then holds the plan alone
    own.load(passes)
    if policy == "list":
        typer.echo(policy_list())
        return
    if profile is None:
        raise BadInput(
            "no profile was given; name the profile.json that `dovetail trace` wrote (see `dovetail plan --help`)"
        )
    traced = codec.load(Profile, profile)
    network = _cluster(cluster, workers, rate, startup, hubs)
    if policy == AUTO and (aggregation or update or without):
        raise BadInput("policy 'auto' chooses aggregation, update and passes itself; leave those options out")
    if policy == AUTO:
        made = _auto(traced, network, quiet)
    else:
        made = plan_for_training(traced, network, policy, aggregation=aggregation, update=update, without=without or ())
    typer.echo(summary(made), err=quiet)
    for path in (output, json):
        if path is not None:
            codec.save(made, path)


def _cluster(path: Path | None, workers: int | None, rate: str, startup: str, hubs: int) -> Cluster:
    if (path is None) == (workers is None):
        raise BadInput("give the cluster as --cluster FILE, or as --workers N --rate 500mbit: one of the two")
    if path is not None:
        return codec.load(Cluster, path)
    link = Link(startup=parse_seconds(startup), bandwidth=parse_rate(rate) or float("inf"))
    return Cluster.uniform(workers=workers or 0, link=link, hubs=hubs)


def _auto(profile: Profile, cluster: Cluster, quiet: bool) -> Plan:
    from dovetail.simulate.run import simulate  # only auto needs the simulator

    best, tried = choose(profile, cluster, partial(simulate, quick=True))
    for name, seconds in tried:
        typer.echo(f"{format_seconds(seconds):>8}  {name}", err=quiet)
    typer.echo("", err=quiet)
    return best
