"""`dovetail simulate`: what each policy would bring on a cluster, before a machine is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dovetail import codec
from dovetail.cli import passes as own
from dovetail.errors import BadInput
from dovetail.network.model import Cluster
from dovetail.plan.schedule import Plan
from dovetail.simulate.compare import Comparison, Conditions, comparison, plan_for, run_all
from dovetail.simulate.inputs import described
from dovetail.simulate.inputs import straggler as parse_straggler
from dovetail.timeline import format_overlap
from dovetail.trace.graph import Profile
from dovetail.units import format_count, format_rate, format_seconds

POLICIES = "bulk,fifo,ddp,tac,p3,ibatch,dear,caramel"
LEGEND = (
    "T iteration, gain over the first row, N network in use, C computation, rho N / C,\n"
    "alpha (N + C - T) / min(N, C): 1 = all is hidden that could be, - = hardly anything to hide, U C / T"
)


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("simulate")(simulate)


def simulate(
    profile: Annotated[Path | None, typer.Argument(help="profile.json of `dovetail trace`.")] = None,
    model: Annotated[str | None, typer.Option(help="A published network instead, e.g. resnet50.")] = None,
    compute: Annotated[float, typer.Option(help="Seconds of computation per iteration of --model.")] = 1.0,
    scale: Annotated[float, typer.Option(help="Shrink the parameters of --model, as the bench does.")] = 1.0,
    cluster: Annotated[Path | None, typer.Option(help="cluster.json of `dovetail network`.")] = None,
    workers: Annotated[int, typer.Option(help="Equal workers, instead of --cluster.")] = 4,
    rate: Annotated[str, typer.Option(help="Their links, e.g. 500mbit.")] = "1gbit",
    startup: Annotated[str, typer.Option(help="Startup of one transfer.")] = "50us",
    hubs: Annotated[int, typer.Option(help="Dedicated hubs with the same links.")] = 0,
    racks: Annotated[int, typer.Option(help="Racks that share the workers evenly.")] = 1,
    oversubscription: Annotated[float, typer.Option(help="Of each rack's uplink.")] = 1.0,
    policy: Annotated[str, typer.Option(help="Policies to compare, with commas; 'auto' is one.")] = POLICIES,
    aggregation: Annotated[str | None, typer.Option(help="One pattern for all; default: as in training.")] = None,
    passes: own.Passes = None,
    plan: Annotated[list[Path] | None, typer.Option(help="A plan.json to compare too; may be given again.")] = None,
    straggler: Annotated[list[str] | None, typer.Option(help="RANK:FACTOR, a slower worker.")] = None,
    jitter: Annotated[float, typer.Option(help="Spread of compute times, 0.05 = 5 %.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the jitter.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Draw the comparison: page.html.")] = None,
    timelines: Annotated[Path | None, typer.Option(help="Folder for a timeline per policy.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the table here; `-` = standard output.")] = None,
) -> None:
    """Predict the iteration time of policies on a cluster.

    Example: dovetail simulate --model resnet50 --compute 1.0 --workers 4 --rate 500mbit --policy bulk,fifo,ddp,p3
    """
    console = Console(stderr=json is not None and str(json) == "-")
    own.load(passes)
    traced = _profile(profile, model, compute, scale)
    if cluster is not None:
        network = codec.load(Cluster, cluster)
    else:
        network = described(
            workers=workers, rate=rate, startup=startup, hubs=hubs, racks=racks, oversubscription=oversubscription
        )
    names = [name.strip() for name in policy.split(",") if name.strip()]
    plans = [plan_for(traced, network, name, aggregation) for name in names]
    plans += [codec.load(Plan, path) for path in plan or ()]
    if not plans:
        raise BadInput("no policy to simulate; give --policy, e.g. --policy bulk,p3, or --plan plan.json")
    slow = dict(parse_straggler(text) for text in straggler or ())
    found = run_all(traced, network, plans, Conditions(jitter=jitter, seed=seed, stragglers=slow))
    result: Comparison = comparison(traced, network, found)
    console.print(_table(result))
    console.print(LEGEND, soft_wrap=True)
    for note in dict.fromkeys(note for timeline in found.values() for note in timeline.notes):
        console.print(f"note: {note}")
    try:
        if output is not None:
            from dovetail.simulate.draw import page  # plotly takes a moment to load

            output.write_text(page(result, traced, network, found), encoding="utf-8")
            console.print(f"{output}: the comparison, drawn", soft_wrap=True)
        if timelines is not None:
            timelines.mkdir(parents=True, exist_ok=True)
            for made, timeline in found.items():
                codec.save(timeline, timelines / f"{made.policy.replace(': ', '-')}.json")
            console.print(f"{timelines}: {len(found)} timelines for `dovetail report`", soft_wrap=True)
    except OSError as error:
        raise BadInput(f"cannot write {error.filename}: {error.strerror}") from None
    if json is not None:
        codec.save(result, json)


def _profile(path: Path | None, model: str | None, compute: float, scale: float) -> Profile:
    if path is None and model is None:
        raise BadInput(
            "no model was given; name the profile.json that `dovetail trace` wrote, or a published network, e.g. "
            "--model resnet50 --compute 1.0 (see `dovetail simulate --help`)"
        )
    if path is not None and model is not None:
        raise BadInput(f"both {path} and --model {model} were given; name one model")
    if path is not None:
        return codec.load(Profile, path)
    from dovetail.bench.models import profile_of

    return profile_of(str(model), compute=compute, scale=scale)


def _table(found: Comparison) -> Table:
    where = format_count(found.workers, "worker") + (f", {format_count(found.hubs, 'hub')}" if found.hubs else "")
    table = Table(title=f"{found.model or 'model'} on {where} at {format_rate(found.bandwidth)}", box=None)
    for column in ("policy", "pattern"):
        table.add_column(column, no_wrap=True)
    for column in ("T", "gain", "N", "C", "rho", "alpha", "U"):
        table.add_column(column, justify="right", no_wrap=True)
    for p in found.predictions:
        table.add_row(
            p.policy,
            p.aggregation,
            format_seconds(p.iteration_time),
            f"{p.speedup:.2f}",
            format_seconds(p.communication_time),
            format_seconds(p.compute_time),
            f"{p.rho:.2f}",
            format_overlap(p.communication_time, p.compute_time, p.iteration_time),
            f"{p.utilization:.0%}",
        )
    return table
