"""`dovetail report` from files to a table, a page, a trace and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail import codec
from dovetail.cli.main import run
from dovetail.timeline import COMPUTE, SEND, Span, Timeline


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, length in (("ddp", 2.0), ("hub", 1.0)):
        spans = (
            Span(node="worker 0", lane=COMPUTE, name="op", start=0, end=1, iteration=0),
            Span(node="worker 0", lane=SEND, name="w", start=length - 1, end=length, iteration=0, nbytes=10),
        )
        timeline = Timeline(source="engine", policy=name, spans=spans, boundaries={"worker 0": (0.0, length)})
        codec.save(timeline, tmp_path / f"{name}.json")
    return tmp_path


def test_a_table_on_stdout(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(runs)]) == 0
    assert "2.00x" in capsys.readouterr().out


def test_a_page(runs: Path) -> None:
    assert run(["report", str(runs), "-o", str(runs / "out.html"), "--title", "Monday"]) == 0
    assert "<title>Monday</title>" in (runs / "out.html").read_text(encoding="utf-8")


def test_a_trace_which_is_not_taken_for_a_run_later(runs: Path) -> None:
    for _ in range(2):
        assert run(["report", str(runs), "-o", str(runs / "out.json")]) == 0
    assert len(json.loads((runs / "out.json").read_text())["traceEvents"]) > 4


def test_figures_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(runs), "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [(f["name"], f["iteration_time"], f["alpha"]) for f in figures] == [("ddp", 2.0, 0.0), ("hub", 1.0, 1.0)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.json"], "cannot read"),
        (["{runs}", "-o", "out.pdf"], "out.pdf"),
        (["{runs}", "-o", "{runs}/missing/out.html"], "cannot write"),
        ([], "Missing argument"),
    ],
)
def test_mistakes(runs: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", *(a.format(runs=runs) for a in arguments)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("dovetail: ")
    assert complaint in shown
    assert shown.count("\n") == 1
