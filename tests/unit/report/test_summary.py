"""The figures that reports add to a timeline's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_cases import two_workers

from dovetail.report.summary import summarize
from dovetail.report.text import render, table
from dovetail.timeline import AFTER, COMPUTE, RECEIVE, SEND, Span, Timeline


def test_figures_by_hand() -> None:
    summary = summarize(two_workers(), name="ours")
    assert (summary.name, summary.workers, summary.iterations) == ("ours", 2, 2)
    assert summary.iteration_time == pytest.approx(1.0)
    assert summary.compute_time == pytest.approx(0.7)
    assert summary.communication_time == pytest.approx(0.4)
    assert summary.exposed == pytest.approx(0.3)  # 0.6 to 0.9: sent and received while nothing is computed
    assert summary.waiting == pytest.approx(0.1)
    assert (summary.sent, summary.received) == (4_000, 4_000)


def test_bytes_by_direction_and_priority_most_urgent_first() -> None:
    traffic = [(t.direction, t.priority, t.nbytes, t.transfers) for t in summarize(two_workers()).traffic]
    assert traffic == [(SEND, 0, 1_000, 1), (SEND, 1, 3_000, 1), (RECEIVE, None, 4_000, 1)]


def test_lateness_names_the_slow_worker() -> None:
    lateness = summarize(two_workers(slower=0.05)).lateness
    assert lateness == {"worker 0": pytest.approx(0), "worker 1": pytest.approx(0.05)}


def test_what_is_computed_after_a_wait_for_the_gradients_makes_nobody_late() -> None:
    run = two_workers(slower=0.05)
    clipped = [
        Span(node="worker 0", lane=COMPUTE, name=AFTER, start=t + 0.8, end=t + 0.85, iteration=i)
        for i, t in ((0, 5.0), (1, 6.0))
    ]
    assert summarize(replace(run, spans=(*run.spans, *clipped))).lateness["worker 0"] == pytest.approx(0)


def test_a_name_is_found_when_none_is_given() -> None:
    assert summarize(two_workers()).name == "p3"
    assert summarize(replace(two_workers(), policy="")).name == "engine"


def test_an_empty_timeline_is_shown_all_the_same() -> None:
    summary = summarize(Timeline(source="simulator", policy="p3", spans=(), boundaries={}))
    assert summary.rho is None
    assert "iteration time" in render([summary, summary])


def test_the_text_puts_runs_side_by_side_with_speed_up_over_the_first() -> None:
    run = two_workers()
    faster = replace(run, boundaries=dict.fromkeys(run.boundaries, (5.0, 5.8, 6.6)), notes=("slices grew",))
    lines = render([summarize(run, name="slow"), summarize(faster, name="fast")]).splitlines()
    assert lines[0].split() == ["slow", "fast"]
    row = next(line for line in lines if line.startswith("speed-up"))
    assert row.split() == ["speed-up", "1.00x", "1.25x"]
    assert lines[-1] == "fast: slices grew"


def test_one_run_has_no_speed_up() -> None:
    assert "speed-up" not in render([summarize(two_workers())])


def test_columns_are_aligned() -> None:
    lines = table(["what", "a"], [["x", "10"], ["longer", "7"]]).splitlines()
    assert lines == ["what     a", "------  --", "x       10", "longer   7"]
