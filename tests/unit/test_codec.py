"""What is saved is what is loaded; anything else is refused with the file's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.network.model import Cluster, Link
from dovetail.timeline import LANES, Span, Timeline
from dovetail.trace.graph import Profile

times = st.floats(-1e6, 1e6)
spans = st.builds(
    Span,
    node=st.sampled_from(("worker 0", "hub 0")),
    lane=st.sampled_from(LANES),
    name=st.text(max_size=8),
    start=times,
    end=times,
    iteration=st.integers(-1, 10),
    nbytes=st.integers(0, 2**40),
    peer=st.text(max_size=3),
    priority=st.none() | st.integers(-5, 5),
)
timelines = st.builds(
    Timeline,
    source=st.text(max_size=5),
    policy=st.text(max_size=5),
    spans=st.lists(spans, max_size=4).map(tuple),
    boundaries=st.dictionaries(st.text(max_size=4), st.lists(times, max_size=3).map(tuple), max_size=2),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@given(timelines)
def test_timelines_come_back_equal(timeline: Timeline) -> None:
    assert codec.decode(Timeline, codec.encode(timeline)) == timeline


def test_figures_that_were_asked_for_are_not_saved() -> None:
    timeline = Timeline(source="engine", policy="p3", spans=(), boundaries={"worker 0": (0.0, 1.0)})
    before = codec.encode(timeline)
    assert timeline.iteration_time == 1.0
    assert codec.encode(timeline) == before


def test_a_saved_file_says_what_it_is_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    cluster = Cluster.uniform(workers=2, link=Link(startup=5e-5, bandwidth=125e6))
    codec.save(cluster, tmp_path / "cluster.json")
    assert codec.load(Cluster, tmp_path / "cluster.json") == cluster
    envelope = json.loads((tmp_path / "cluster.json").read_text())
    assert (envelope["format"], envelope["version"]) == ("dovetail.cluster", codec.VERSION)
    assert [file.name for file in tmp_path.iterdir()] == ["cluster.json"]


def test_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    timeline = Timeline(source="engine", policy="p3", spans=(), boundaries={})
    codec.save(timeline, "-")
    assert codec.decode(Timeline, capsys.readouterr().out.encode()) == timeline


def edited(timeline: Timeline, **changes: object) -> bytes:
    return json.dumps({**json.loads(codec.encode(timeline)), **changes}).encode()


EMPTY = Timeline(source="engine", policy="p3", spans=(), boundaries={})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a dovetail file"),
        (b"{]", "not a dovetail file"),
        (b"[1, 2]", "not a dovetail file"),
        (codec.encode(Profile(ops=(), params=())), "holds 'dovetail.profile', but 'dovetail.timeline'"),
        (edited(EMPTY, version=99), "format version 99"),
        (edited(EMPTY, data={"source": "engine"}), "missing required field"),
        (edited(EMPTY, data={"source": 3, "policy": "", "spans": [], "boundaries": {}}), "source"),
    ],
)
def test_wrong_files_are_named_and_explained(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=complaint) as caught:
        codec.load(Timeline, path)
    assert str(path) in str(caught.value)


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        codec.load(Timeline, tmp_path / "missing.json")
    with pytest.raises(BadInput, match="cannot write"):
        codec.save(EMPTY, tmp_path / "missing" / "run.json")
