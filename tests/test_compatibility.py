"""docs/compatibility.md promises nothing without a test: each row names one that pytest finds, each scenario has a row.

A name in a row is a test, or a case that a test runs, in a file that the row links; "same file" is the one that a row
above links. In a row without a file it is one of the scenarios that RUNNERS run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from collected import ROOT, collected

PAGE = ROOT / "docs" / "compatibility.md"
PROOF = ("test", "behaviour")  # columns that name what proves the row
LINK = re.compile(r"\[[^]]*\]\(([^)#]+)\)")
NAME = re.compile(r"`([^`]+)`")
RUNNERS = tuple(
    ROOT / "tests" / file
    for file in (
        "c10d/test_side_by_side.py",
        "training/test_features.py",
        "training/test_process_group_engine.py",
        "training/test_semantics.py",
        "training/test_surroundings.py",
    )
)  # their cases are features
NO_FEATURE = {
    "steps_do_not_wait_under_any_of_it",  # that nothing waits is the promise of every row
    "steps_return_before_their_results_are_there",
}


@dataclass(frozen=True)
class Row:
    feature: str
    names: tuple[str, ...]
    links: tuple[Path, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Where the names may be."""
        return self.links or RUNNERS


def rows(text: str, folder: Path = PAGE.parent) -> list[Row]:
    """The rows of every table that has a column of proofs."""
    found: list[Row] = []
    column: int | None = None
    above: tuple[Path, ...] = ()
    for line in text.splitlines():
        if not line.startswith("|"):
            column, above = None, ()
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if set("".join(cells)) <= set("-: "):
            continue
        if column is None:
            column = next((i for i, cell in enumerate(cells) if cell in PROOF), -1)
        elif column >= 0:
            proof = cells[column]
            links = tuple((folder / link).resolve() for link in LINK.findall(proof))
            above = links or above
            files = above if "same file" in proof else links
            found.append(Row(cells[0], tuple(NAME.findall(LINK.sub("", proof))), files))
    return found


ROWS = rows(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tests() -> dict[Path, frozenset[str]]:
    files = {path for row in ROWS for path in row.files if path.name.startswith("test_")}
    return collected(sorted(path for path in files if path.exists()))


@pytest.mark.parametrize("row", [pytest.param(row, id=row.feature) for row in ROWS])
def test_each_row_names_a_test_that_is_run(row: Row, tests: dict[Path, frozenset[str]]) -> None:
    assert row.names or row.links, f"nothing proves {row.feature!r}"
    for path in row.links:
        assert path.exists(), f"{row.feature!r} links {path}, which does not exist"
        assert path in tests or not path.name.startswith("test_"), f"{row.feature!r} links {path}, which tests nothing"
    run = {name for path in row.files for name in tests.get(path, ())}
    missing = [name for name in row.names if name not in run]
    files = ", ".join(path.name for path in row.files)
    assert not missing, f"{row.feature!r} is said to be proven by {missing[0]}, which is not run by {files}"


def test_each_scenario_has_a_row(tests: dict[Path, frozenset[str]]) -> None:
    told = {name for row in ROWS for name in row.names}
    for path in RUNNERS:
        cases = {name for name in tests[path] if not name.startswith("test_")}
        assert cases
        untold = sorted(cases - told - NO_FEATURE)
        assert not untold, f"{path.name} runs {untold[0]}, which no row of {PAGE.name} names"


def test_what_is_no_feature_is_run(tests: dict[Path, frozenset[str]]) -> None:
    assert {name for path in RUNNERS for name in tests[path]} >= NO_FEATURE


def test_the_check_itself() -> None:
    table = """
| feature | remark | test |
|---|---|---|
| a | b | `c` in [d](../e.py) |
| f | g | `h`, same file |
| i | j | `k` |

| call | runs on |
|---|---|
| x | y |
"""
    linked = (Path("/e.py"),)
    wanted = [Row("a", ("c",), linked), Row("f", ("h",), linked), Row("i", ("k",), ())]
    assert rows(table, Path("/docs")) == wanted
