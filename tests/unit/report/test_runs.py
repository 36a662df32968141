"""Saved timelines are found by file and by directory, and never confused."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_cases import two_workers

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.report.runs import load_runs


def save(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        codec.save(two_workers(), path)


def test_a_directory_gives_its_timelines_and_skips_the_rest(tmp_path: Path) -> None:
    save(tmp_path / "hub.json", tmp_path / "ddp.json")
    (tmp_path / "bench.json").write_text('{"bench": "train"}')
    runs = load_runs([tmp_path])
    assert list(runs) == ["ddp", "hub"]
    assert runs["hub"] == two_workers()


def test_files_keep_the_order_they_are_given_in(tmp_path: Path) -> None:
    save(tmp_path / "b.json", tmp_path / "a.json")
    assert list(load_runs([tmp_path / "b.json", tmp_path / "a.json"])) == ["b", "a"]


def test_files_of_one_name_are_told_apart_by_their_directories(tmp_path: Path) -> None:
    save(tmp_path / "monday" / "hub.json", tmp_path / "friday" / "hub.json")
    assert list(load_runs([tmp_path / "monday", tmp_path / "friday"])) == ["monday/hub", "friday/hub"]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "hub.json")
    with pytest.raises(BadInput, match="two runs are called"):
        load_runs([tmp_path / "hub.json", tmp_path])


def test_a_directory_without_any_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{tmp_path} holds no saved timeline"):
        load_runs([tmp_path])
