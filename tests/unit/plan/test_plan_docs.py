"""What docs/algorithms.md and docs/plan-format.md show is true: the example pass runs, the example plan decodes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import codec
from dovetail.cli.main import run
from dovetail.plan.base import name_of
from dovetail.plan.patterns import PATTERNS
from dovetail.plan.policies import policies
from dovetail.plan.schedule import Plan, Transfer

ROOT = Path(__file__).parents[3]
ALGORITHMS = (ROOT / "docs" / "algorithms.md").read_text()
FORMAT = (ROOT / "docs" / "plan-format.md").read_text()
EXAMPLE = ROOT / "examples" / "my_pass.py"


def test_the_example_pass_runs_and_is_short() -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "7 transfers, most urgent first: fc.weight, conv.weight\n"
    assert len(EXAMPLE.read_text().splitlines()) < 40


def test_the_docs_show_the_example_as_it_is() -> None:
    assert EXAMPLE.read_text().rstrip() in ALGORITHMS


def test_the_command_line_runs_the_example_as_the_docs_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.plan.policies._registered", {})
    monkeypatch.chdir(ROOT)
    (command,) = re.findall(r"^dovetail (simulate .* --passes .*)$", ALGORITHMS, re.MULTILINE)
    assert run(shlex.split(command)) == 0
    assert "largest-first" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "words"), [("1 / 0", "fails: ZeroDivisionError"), (None, "is no Python file")])
def test_a_file_of_passes_that_does_not_work_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    assert run(["plan", "--policy", "list", "--passes", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dovetail: --passes ")
    assert words in said
    assert said.count("\n") == 1


def test_the_docs_list_the_policies_as_they_are() -> None:
    listed = dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([a-z0-9> -]+) \|$", ALGORITHMS, re.MULTILINE))
    built_in = {name: " > ".join(map(name_of, p.passes)) for name, p in policies().items() if name in listed}
    assert listed == built_in
    assert len(listed) == 10


def test_the_example_plan_is_a_plan_and_survives_the_way_back() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", FORMAT, re.DOTALL)
    plan = codec.decode(Plan, text.encode(), source="docs/plan-format.md")
    assert plan.order == ["conv.weight", "fc.weight"]
    assert codec.decode(Plan, codec.encode(plan)) == plan


def test_every_field_and_pattern_is_explained() -> None:
    for field in [*Plan.__dataclass_fields__, *Transfer.__dataclass_fields__]:
        assert f"| `{field}` |" in FORMAT
    assert all(f"`{pattern}`" in FORMAT for pattern in PATTERNS)
