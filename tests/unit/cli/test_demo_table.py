"""The demo's table, from results made by hand."""

from __future__ import annotations

from dovetail.bench.result import SystemResult, Times, TrainResult
from dovetail.cli.demo import render
from dovetail.timeline import COMPUTE, SEND, Span, Timeline


def system(name: str, seconds: float, *, alpha: float | None = 0.5) -> SystemResult:
    times = Times(median=seconds, min=seconds, max=seconds)
    return SystemResult(
        name=name, variant="", policy="p3", machines=4, workers=4, iteration_s=times, floor_s=0.4, paced_s=0.4,
        bound_s=0.5, alpha=alpha, cpu_idle=0.9,
    )  # fmt: skip


def result(*systems: SystemResult, notes: tuple[str, ...] = ()) -> TrainResult:
    return TrainResult(
        bench="train", model="vgg19", scale=1 / 16, workers=4, rate=62.5e6, measured_rate=6e7, bytes=100, compute_s=0.5,
        systems=systems, notes=notes,
    )  # fmt: skip


def test_speed_up_over_ddp_and_share_of_the_bound() -> None:
    lines = render(result(system("ddp", 1.0), system("hub", 0.625)), {}).splitlines()
    assert "over DDP" in lines[0]
    assert lines[2].split()[-4:] == ["s", "1.00x", "50%", "0.50"]
    assert lines[3].split()[-4:] == ["ms", "1.60x", "80%", "0.50"]


def test_without_ddp_nothing_is_compared_with_it_and_a_line_says_why() -> None:
    spans = (
        Span(node="worker 0", lane=COMPUTE, name="op", start=0, end=1, iteration=0),
        Span(node="worker 0", lane=SEND, name="w", start=0, end=1, iteration=0),
    )
    run = Timeline(source="hub", policy="p3", spans=spans, boundaries={"worker 0": (0.0, 1.0)})
    shown = render(result(system("hub", 1.0, alpha=None), notes=("ddp left out",)), {"hub": run})
    assert "over DDP" not in shown
    assert shown.splitlines()[2].endswith("1.00")  # alpha of the recording, where the links were not watched
    assert shown.splitlines()[-1] == "ddp left out"
