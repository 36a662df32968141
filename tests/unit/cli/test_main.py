"""The command: one line for every mistake, verbs loaded when called, help that lists them all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from dovetail.cli import main
from dovetail.errors import BadInput, PeerLost

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> object:
    """Gives the verb `plan` another body for one test."""

    def install(body: object) -> None:
        module = SimpleNamespace(register=lambda app: app.command("plan")(body))
        monkeypatch.setattr(main.importlib, "import_module", lambda name: module)
        monkeypatch.setattr(main, "available", lambda: ("plan", "report"))

    return install


def failing(error: BaseException) -> object:
    def body() -> None:
        raise error

    return body


def test_help_lists_every_verb_with_its_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in main.available():
        assert f"  {name} " in shown
        assert main.VERBS[name] in shown


def test_no_words_at_all_is_a_call_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "Usage: dovetail" in capsys.readouterr().out


def commands(name: str) -> list[list[str]]:
    """The verb, or each of its commands where it has several."""
    loaded = typer.main.get_command(main.build(name)).commands[name]  # type: ignore[attr-defined]
    return [[name, part] for part in getattr(loaded, "commands", ())] or [[name]]


@pytest.mark.parametrize("name", main.available())
def test_every_verb_explains_itself_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(name):
        assert main.run([*words, "--help"]) == 0
        usage, explained = capsys.readouterr().out.strip().split("\n", 1)
        assert usage.startswith(f"Usage: dovetail {' '.join(words)}")
        assert f"dovetail {' '.join(words)}" in " ".join(explained.split())


@pytest.mark.parametrize("name", main.available())
def test_examples_name_options_that_exist(name: str) -> None:
    for words in commands(name):
        command = typer.main.get_command(main.build(name)).commands[name]  # type: ignore[attr-defined]
        command = command.commands[words[1]] if len(words) > 1 else command
        known = {option for parameter in command.params for option in parameter.opts}
        for example in re.findall(rf"dovetail {' '.join(words)}\b[^`\n]*", command.help):
            own = example.split(" -- ")[0].split()
            assert {word for word in own if re.match(r"--?[a-z]", word)} <= known


@pytest.mark.parametrize(
    ("verb", "message"), [("plan", "no profile was given"), ("simulate", "no model was given"), ("rank", "")]
)
def test_a_verb_without_its_input_says_what_is_missing(
    verb: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([verb]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert message in said.err
    assert f"`dovetail {verb} --help`" in said.err


@pytest.mark.parametrize("error", [BadInput("rate 'x' is wrong"), PeerLost("rank 1 at\n10.0.0.1: silent")])
def test_our_errors_are_one_line_and_exit_code_2(
    verb: object, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(failing(error))  # type: ignore[operator]
    assert main.run(["plan"]) == 2
    assert capsys.readouterr().err == f"dovetail: {' '.join(str(error).split())}\n"


def test_ctrl_c_is_one_line_and_exit_code_130(verb: object, capsys: pytest.CaptureFixture[str]) -> None:
    verb(failing(KeyboardInterrupt()))  # type: ignore[operator]
    assert main.run(["plan"]) == 130
    assert capsys.readouterr().err == "dovetail: interrupted\n"


def test_a_verb_may_choose_its_exit_code(verb: object) -> None:
    verb(failing(typer.Exit(3)))  # type: ignore[operator]
    assert main.run(["plan"]) == 3


def test_our_own_mistakes_are_not_hidden(verb: object) -> None:
    verb(failing(ZeroDivisionError("a bug")))  # type: ignore[operator]
    with pytest.raises(ZeroDivisionError):
        main.run(["plan"])


def test_an_unbuilt_engine_says_what_to_do(verb: object, capsys: pytest.CaptureFixture[str]) -> None:
    verb(failing(ModuleNotFoundError("no", name="dovetail._native")))  # type: ignore[operator]
    assert main.run(["plan"]) == 2
    assert "make setup" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["reprot"], "dovetail: unknown verb 'reprot'; did you mean `dovetail report`?\n"),
        (["xyzzy"], "dovetail: unknown verb 'xyzzy'; `dovetail --help` lists them\n"),
        (["banana"], "dovetail: unknown verb 'banana'; `dovetail --help` lists them\n"),
        (["--fast"], "dovetail: No such option: --fast (see `dovetail --help`)\n"),
        (["cost", "--fast"], "dovetail: No such option: --fast (see `dovetail cost --help`)\n"),
        (["bench", "train", "--bogus"], "dovetail: No such option: --bogus (see `dovetail bench train --help`)\n"),
    ],
)
def test_slips_of_the_finger(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    assert capsys.readouterr().err == line


def test_only_options_that_are_close_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", "--polcy", "p3"]) == 2
    said = capsys.readouterr().err
    assert "--policy" in said
    assert "--plan" not in said


def test_the_process_ends_with_the_code() -> None:
    command = [sys.executable, "-m", "dovetail.cli.main", "xyzzy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=SOURCE)
    assert done.returncode == 2
    assert done.stderr.startswith("dovetail: ")
    assert done.stderr.count("\n") == 1
