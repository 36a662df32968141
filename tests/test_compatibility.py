"""docs/compatibility.md promises nothing without a test: every row names one, and every one that is named exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
PROOF = ("test", "tests", "behaviour")  # columns that name what proves the row
LINK = re.compile(r"\]\(([^)#]+)\)")
NAME = re.compile(r"`([^`]+)`")


def rows(text: str) -> list[tuple[str, str]]:
    """Feature and proof of every row of every table that has such a column."""
    found: list[tuple[str, str]] = []
    column: int | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            column = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if set("".join(cells)) <= set("-: "):
            continue
        if column is None:
            column = next((i for i, cell in enumerate(cells) if cell in PROOF), -1)
        elif column >= 0:
            found.append((cells[0], cells[column]))
    return found


@cache
def functions() -> frozenset[str]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    return frozenset(name for text in texts for name in re.findall(r"^(?:async )?def (\w+)\(", text, re.MULTILINE))


@pytest.mark.parametrize(("feature", "proof"), rows(PAGE.read_text(encoding="utf-8")))
def test_each_row_names_a_test_that_exists(feature: str, proof: str) -> None:
    names, links = NAME.findall(LINK.sub("", proof)), LINK.findall(proof)
    assert names or links, f"nothing proves {feature!r}"
    missing = [name for name in names if name not in functions()]
    missing += [link for link in links if not (PAGE.parent / link).exists()]
    assert not missing, f"{feature!r} is said to be proven by {missing[0]}, which does not exist"


def test_the_check_itself() -> None:
    text = "| feature | remark | test |\n|---|---|---|\n| a | b | `c` |\n\n| call | runs on |\n|---|---|\n| x | y |\n"
    assert rows(text) == [("a", "`c`")]
