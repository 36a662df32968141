"""What README.md, docs/*.md and the examples tell a reader to type is typed here.

- A `console` block is run: its `$ ` lines are commands (`> ` continues one), in order, in one fresh directory per file;
  each line below a command must be in its output. Numbers may differ, `...` stands for anything.
- A `python` block whose first line is `# name.py` becomes that file in the same directory; any other is a fragment:
  it must compile, and the names it takes from dovetail must exist.
- A `bash` block is not run (it installs, or takes long), but its verbs, options and make targets must exist.
- An example runs as its docstring says in a line `Run: COMMAND`, from the repository's root; those that need optional
  packages are run by tests/extras.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import dovetail
from collected import ROOT, collected
from dovetail.cli.main import available

README = ROOT / "README.md"
PATIENCE = 120.0  # seconds for one command; a slower one belongs into a `bash` block

BLOCK = re.compile(r"^```(console|python|bash)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
NEEDS_LAB = re.compile(r"\bdovetail (lab|bench|demo)\b")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    where: str  # file:line


def blocks(path: Path, kind: str) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}")
        for match in BLOCK.finditer(text)
        if match[1] == kind
    ]


def pages() -> list[Path]:
    return [path for path in (README, *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]


def each(kind: str) -> list[object]:
    return [pytest.param(block, id=block.where) for page in pages() for block in blocks(page, kind)]


def conversation(text: str) -> list[tuple[str, list[str]]]:
    """Commands with the lines that a console block shows below each."""
    turns: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            turns.append((line[2:], []))
        elif line.startswith("> ") and turns and not turns[-1][1]:
            turns[-1] = (f"{turns[-1][0]}\n{line[2:]}", [])
        elif line.strip() and line.strip() != "...":
            assert turns, f"a console block begins with a `$ ` line, not with {line!r}"
            turns[-1][1].append(line)
    return turns


def shown(expected: str, output: str) -> bool:
    """Is the line in the output, whatever its numbers, spaces and elided parts?"""
    parts = (r"\s+".join(map(re.escape, NUMBER.sub("7", part).split())) for part in expected.split("..."))
    return re.search(".*".join(parts), NUMBER.sub("7", output)) is not None


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env={**os.environ, "PATH": tools, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )


def skip_without_lab(command: str) -> None:
    if NEEDS_LAB.search(command):
        from dovetail.lab import available as lab_available

        allowed, reason = lab_available()
        if not allowed:
            pytest.skip(reason)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in pages() if blocks(page, "console")])
def test_console_blocks_do_what_they_show(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in blocks(page, "python"):
        name = file_name(block)
        if name:
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    for block in blocks(page, "console"):
        for command, expected in conversation(block.text):
            skip_without_lab(command)
            done = shell(command, tmp_path)
            assert done.returncode == 0, f"{block.where}: {command}\n{done.stdout}"
            for line in expected:
                assert shown(line, done.stdout), f"{block.where}: {command}\nno line like {line!r} in\n{done.stdout}"


def file_name(block: Block) -> str | None:
    match = re.match(r"#\s*([\w-]+\.py)\s*$", block.text.splitlines()[0]) if block.text.strip() else None
    return match[1] if match else None


@pytest.mark.parametrize("block", each("python"))
def test_python_blocks_use_what_exists(block: Block) -> None:
    tree = ast.parse(block.text, filename=block.where)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dovetail"
    }
    taken = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "dovetail")
    used |= {alias.name for node in taken for alias in node.names}
    missing = sorted(name for name in used if not hasattr(dovetail, name))
    assert not missing, f"{block.where} uses dovetail.{missing[0]}, which does not exist"


@pytest.mark.parametrize("block", each("bash"))
def test_bash_blocks_name_what_exists(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for problem in problems(words):
            pytest.fail(f"{block.where}: {line.strip()}: {problem}")


def problems(words: list[str]) -> list[str]:
    """What in a command line of ours does not exist."""
    own = words[: words.index("--")] if "--" in words else words
    if own[:1] == ["make"]:
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return [f"no make target {word!r}" for word in own[1:] if re.fullmatch(r"[\w-]+", word) and word not in targets]
    if own[:1] != ["dovetail"] or len(own) < 2 or own[1].startswith("-"):
        return []
    if own[1] not in available():
        return [f"no verb {own[1]!r}"]
    accepted = help_of(own[1]) + (help_of(own[1], own[2]) if len(own) > 2 and own[2].isidentifier() else "")
    options = [word.split("=")[0] for word in own if re.match(r"--?[a-z]", word)]
    return [f"no option {o}" for o in options if not re.search(rf"(?<![\w-]){re.escape(o)}(?![\w-])", accepted)]


@cache
def help_of(*words: str) -> str:
    command = [sys.executable, "-m", "dovetail.cli.main", *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT / "src")
    return done.stdout if done.returncode == 0 else ""


def runnable_examples() -> list[object]:
    found = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for command in re.findall(r"^\s*Run:\s*(\S.*)$", text, re.MULTILINE):
            found.append(pytest.param(path, command.strip("`"), id=path.name))
    return found


@pytest.mark.parametrize(("path", "command"), runnable_examples())
def test_examples_run_as_they_say(path: Path, command: str, tmp_path: Path) -> None:
    skip_without_lab(command)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert path.name in command, f"{path.name} says `Run: {command}`, which does not run it"
    done = shell(command, tmp_path)
    assert done.returncode == 0, f"{command}\n{done.stdout}"


def test_each_example_is_run_by_a_test() -> None:
    found = collected([ROOT / "tests" / "test_docs.py", ROOT / "tests" / "extras" / "test_extras_run.py"])
    run = {case.removesuffix(".py") for cases in found.values() for case in cases}
    every = [path for path in (ROOT / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {"extras", "examples"} == {path.parent.name for path in every}
    left_out = [str(path) for path in every if path.stem not in run]
    assert not left_out, f"no test runs {left_out[0]}; a line `Run: COMMAND` in its docstring makes one"


def test_the_readme_shows_something_that_runs() -> None:
    assert blocks(README, "console"), "README.md has no console block, so nothing in it is shown to work"


@pytest.mark.parametrize(
    ("expected", "output", "found"),
    [
        ("took 1.20 s", "it took 3 s\n", True),
        ("ddp   1.31 s  1.00x", "ddp 1 s       1.00x", True),
        ("saved ... bytes", "saved 17 of many bytes", True),
        ("saved 3 files", "saved 3 folders", False),
        ("x (a)", "x (b)", False),
    ],
)
def test_the_comparison_itself(expected: str, output: str, found: bool) -> None:
    assert shown(expected, output) is found


def test_the_conversation_itself() -> None:
    text = "$ echo a \\\n> b\na b\n...\n$ true\n"
    assert conversation(text) == [("echo a \\\nb", ["a b"]), ("true", [])]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("dovetail report runs -o out.html", False),
        ("dovetail report runs --colour red", True),
        ("dovetail rapport runs", True),
        ("make test", False),
        ("make tea", True),
        ("pip install .", False),
    ],
)
def test_the_check_of_commands_itself(line: str, wrong: bool) -> None:
    assert bool(problems(line.split())) is wrong
