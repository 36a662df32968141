"""Tracks: no two spans of one overlap, none is lost, and no fewer would do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from report_cases import two_workers

from dovetail.report.layout import by_node, tracks, zero
from dovetail.timeline import SEND, Span

spans = st.builds(
    lambda start, length: Span(node="worker 0", lane=SEND, name="x", start=start, end=start + length, iteration=0),
    st.integers(0, 50),
    st.integers(1, 20),
)


@given(st.lists(spans, max_size=30))
def test_tracks_are_disjoint_complete_and_fewest(given_spans: list[Span]) -> None:
    laid = tracks(given_spans)
    assert all(a.end <= b.start for track in laid for a, b in pairwise(track))
    assert sorted(s.start for track in laid for s in track) == sorted(s.start for s in given_spans)
    most = max((sum(s.start <= t < s.end for s in given_spans) for t in range(70)), default=0)
    assert len(laid) == most


def test_workers_come_before_hubs() -> None:
    assert list(by_node(two_workers())) == ["worker 0", "worker 1", "hub 0"]


def test_pictures_count_from_the_first_iteration() -> None:
    assert zero(two_workers()) == 5.0
