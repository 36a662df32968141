"""`dovetail trace`: a model becomes profile.json."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail import codec
from dovetail.bench import models
from dovetail.cli.output import write_json
from dovetail.errors import BadInput
from dovetail.trace.factory import call_factory
from dovetail.units import parse_seconds

if TYPE_CHECKING:
    from dovetail.trace.record import Report


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("trace")(trace)


def trace(
    factory: Annotated[str | None, typer.Argument(metavar="MODULE:FACTORY", help="returns model, inputs, loss")] = None,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="the profile")] = "profile.json",
    model: Annotated[str | None, typer.Option(help="a network dovetail knows: vgg19, resnet50, gpt2, ...")] = None,
    compute: Annotated[
        str | None, typer.Option(help="with --model: the published layers, this many seconds a step, untraced")
    ] = None,
    scale: Annotated[float, typer.Option(help="with --compute: share of the published parameter sizes")] = 1.0,
    runs: Annotated[int, typer.Option(min=1, help="timed runs; two more come first and do not count")] = 10,
    hooks: Annotated[bool, typer.Option("--hooks", help="cut real steps at hooks even where export works")] = False,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="scale op times to the measured step")] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="the findings; - = stdout")] = None,
) -> None:
    """Record the operations of one training step, their times, and which parameters they read and complete.

    Example: dovetail trace examples/trace_me.py:make -o profile.json

    Or a network that comes with dovetail: dovetail trace --model vgg19 --compute 1.0 --scale 0.0625
    """
    if (factory is None) == (model is None):
        raise BadInput("give either MODULE:FACTORY or --model NAME")
    if model is not None and compute is not None:
        codec.save(models.profile_of(model, compute=parse_seconds(compute), scale=scale), output)
        return
    if compute is not None or scale != 1.0:
        raise BadInput("--compute and --scale describe a published network; give them with --model and --compute")
    report = _traced(factory, model, runs, hooks)
    from dovetail.trace.record import calibrated

    codec.save(calibrated(report.profile) if calibrate else report.profile, output)
    for line in report.lines():
        print(line, file=sys.stderr if "-" in (output, json) else sys.stdout)
    write_json(json, report.summary())


def _traced(factory: str | None, model: str | None, runs: int, hooks: bool) -> Report:
    from dovetail.trace.record import record  # only then is torch loaded

    if model is not None:
        from dovetail.bench.families import loss

        net, make_batch = models.real_model(model)
        inputs, target = make_batch(0)
        return record(net, inputs, lambda out: loss(out, target), runs=runs, name=model, export=not hooks)
    net, inputs, own = call_factory(factory or "", folder=Path.cwd())
    return record(net, inputs, own, runs=runs, export=not hooks)
