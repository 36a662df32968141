"""The figures of a timeline, against sums by hand and the identities that tie them together."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.timeline import COMPUTE, RECEIVE, SEND, UPDATE, WAIT, Span, Timeline, covered, format_overlap


def span(lane: str, start: float, end: float, *, node: str = "worker 0", iteration: int = 0) -> Span:
    return Span(node=node, lane=lane, name="x", start=start, end=end, iteration=iteration)


def timeline(*spans: Span, boundaries: dict[str, tuple[float, ...]] | None = None) -> Timeline:
    return Timeline(source="test", policy="none", spans=spans, boundaries=boundaries or {"worker 0": (0.0, 10.0)})


def test_by_hand() -> None:
    run = timeline(
        span(COMPUTE, 0, 5), span(UPDATE, 9, 10), span(WAIT, 5, 9), span(SEND, 3, 7), span(RECEIVE, 5, 9),
    )  # fmt: skip
    assert run.iteration_time == 10
    assert run.compute_time == 6
    assert run.communication_time == 6  # sending and receiving at once counts once
    assert run.rho == 1
    assert run.alpha == pytest.approx((6 + 6 - 10) / 6)
    assert run.utilization == 0.6
    assert run.straggler == 0.4
    assert run.link_use == {"worker 0 send": 0.4, "worker 0 receive": 0.4}


def test_the_slowest_worker_sets_each_iteration_and_the_median_the_run() -> None:
    run = timeline(boundaries={"worker 0": (0.0, 1.0, 3.0, 4.0), "worker 1": (0.0, 2.0, 3.0, 9.0)})
    assert run.iteration_times == (2.0, 2.0, 6.0)
    assert run.iteration_time == 2.0


def test_workers_are_in_natural_order_and_hubs_are_none() -> None:
    bounds = {f"worker {n}": (0.0, 1.0) for n in (10, 9, 0)}
    run = timeline(span(UPDATE, 0, 1, node="hub 0"), boundaries=bounds)
    assert run.workers == ("worker 0", "worker 9", "worker 10")
    assert run.compute_time == 0


def test_the_straggler_is_the_worker_that_waits_most() -> None:
    bounds = {"worker 0": (0.0, 10.0), "worker 1": (0.0, 10.0)}
    run = timeline(span(WAIT, 0, 1), span(WAIT, 2, 5, node="worker 1"), boundaries=bounds)
    assert run.straggler == 0.3


def test_what_lies_outside_the_iterations_does_not_count() -> None:
    run = timeline(span(COMPUTE, -5, 1), span(COMPUTE, 9, 30))
    assert run.compute_time == 2


def test_an_empty_timeline_has_figures() -> None:
    run = Timeline(source="", policy="", spans=(), boundaries={})
    assert (run.iteration_time, run.compute_time, run.alpha, run.utilization, run.straggler) == (0, 0, 0, 0, 0)
    assert run.rho == float("inf")
    assert run.link_use == {}


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), max_size=12)


@given(intervals, st.integers(0, 20), st.integers(20, 40))
def test_covered_is_the_length_of_the_union(pairs: list[list[int]], first: int, last: int) -> None:
    cells = {cell for start, end in pairs for cell in range(start, end) if first <= cell < last}
    assert covered((span(SEND, a, b) for a, b in pairs), first=first, last=last) == len(cells)


@given(intervals, intervals, st.floats(1, 100))
def test_utilization_follows_from_alpha_and_rho(busy: list[list[int]], moving: list[list[int]], length: float) -> None:
    run = timeline(
        *(span(COMPUTE, a, b) for a, b in busy),
        *(span(SEND, a, b) for a, b in moving),
        boundaries={"worker 0": (0.0, length)},
    )
    assume(run.compute_time > 0)
    assume(run.communication_time > 0)
    assert run.utilization == pytest.approx(1 / (1 + run.rho - run.alpha * min(run.rho, 1)))


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_alpha_is_one_when_all_is_hidden_and_nought_when_nothing_is(compute: float, move: float) -> None:
    apart = timeline(
        span(COMPUTE, 0, compute),
        span(SEND, compute, compute + move),
        boundaries={"worker 0": (0.0, compute + move)},
    )
    together = timeline(
        span(COMPUTE, 0, compute),
        span(SEND, 0, move),
        boundaries={"worker 0": (0.0, max(compute, move))},
    )
    assert apart.alpha == pytest.approx(0, abs=1e-9)
    assert together.alpha == pytest.approx(1)


@pytest.mark.parametrize(
    ("communication", "compute", "iteration", "shown"),
    [
        (1.0, 2.0, 2.5, "0.50"),
        (1.0, 2.0, 2.0, "1.00"),
        (1.0, 2.0, 3.3, "0.00"),  # startups: links and computation stand still at once
        (0.01, 1.0, 1.1, "-"),
        (1.0, 0.04, 1.0, "-"),
        (0.0, 0.0, 0.0, "-"),
    ],
)
def test_overlap_is_shown_as_a_share_of_what_could_be_hidden(
    communication: float, compute: float, iteration: float, shown: str
) -> None:
    assert format_overlap(communication, compute, iteration) == shown
