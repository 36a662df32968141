"""The `dovetail` command: finds the verb, loads only its file, and turns errors into one line."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import typer

from dovetail.errors import BadInput, DovetailError

# Kept here so that `--help` lists every verb without importing one (several need torch).
VERBS = {
    "demo": "Train with DDP and with dovetail over slow links, and see why.",
    "doctor": "Check what this machine can do, and say what to mend.",
    "lab": "Run a command on each host of a cluster in a box.",
    "trace": "Record a model's operations and parameters: profile.json.",
    "network": "Describe or measure a cluster's links: cluster.json.",
    "plan": "Decide when every gradient and parameter travels: plan.json.",
    "simulate": "Predict the timelines of plans on a cluster.",
    "hub": "Serve jobs: sum gradients, update, send parameters back.",
    "bench": "Measure training or all-reduce beside DDP, Gloo and others.",
    "probe": "Measure latency and bandwidth between hosts.",
    "rank": "Order the ranks of a job to suit its network.",
    "cost": "Compare the cost of training with and without hubs.",
    "report": "Show saved timelines: a table, a page or a Chrome trace.",
    "reproduce": "Repeat the figures of the papers dovetail builds on.",
}


def available() -> tuple[str, ...]:
    """The verbs whose file is part of this installation, in the order help lists them."""
    return tuple(verb for verb in VERBS if importlib.util.find_spec(f"dovetail.cli.{verb}"))


def build(wanted: str | None) -> typer.Typer:
    """The command with the `wanted` verb loaded; the others are names with a line of help."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(_dovetail)
    for verb in available():
        if verb == wanted:
            importlib.import_module(f"dovetail.cli.{verb}").register(app)
        else:
            app.command(verb, help=VERBS[verb])(_not_loaded)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every DovetailError becomes one line on stderr."""
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    try:
        if wanted is not None and wanted not in available():
            raise BadInput(_unknown(wanted))
        result = build(wanted)(list(arguments) or ["--help"], prog_name="dovetail", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except DovetailError as error:
        _complain(str(error))
        return 2
    except ModuleNotFoundError as error:
        if error.name != "dovetail._native":
            raise
        _complain("the native engine is not built; run `make setup`, or `pip install .` in a clone")
        return 2
    except Exception as error:
        # typer keeps click's usage errors private in some releases, so they are told by what they can do.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            _complain(_usage(error))
        return 2
    if code == 130:
        _complain("interrupted")
    return code


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


def _complain(message: str) -> None:
    line = " ".join(message.split())
    print(f"dovetail: {line}", file=sys.stderr)


def _usage(error: Any) -> str:
    """What click says about the command line, and whose help to read."""
    if getattr(error, "possibilities", None):
        # Click compares options with their dashes, which makes any two short ones look alike.
        name = error.option_name.lstrip("-")
        error.possibilities = [o for o in error.possibilities if difflib.get_close_matches(name, [o.lstrip("-")])]
    where = error.ctx.command_path if getattr(error, "ctx", None) else "dovetail"
    return f"{error.format_message()} (see `{where} --help`)"


def _unknown(verb: str) -> str:
    nearest = difflib.get_close_matches(verb, available(), n=1)
    hint = f"did you mean `dovetail {nearest[0]}`?" if nearest else "`dovetail --help` lists them"
    return f"unknown verb {verb!r}; {hint}"


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"dovetail {importlib.metadata.version('dovetail')}")
        except importlib.metadata.PackageNotFoundError:
            raise BadInput("this copy of dovetail is not installed, so it has no version; run `make setup`") from None
        raise typer.Exit


def _dovetail(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    """Fit the communication of data-parallel training into the gaps of its computation.

    Start with `dovetail demo`; `dovetail VERB --help` shows an example of each verb.
    """


def _not_loaded() -> None:
    """Stands in for a verb in the list of commands."""


if __name__ == "__main__":
    main()
