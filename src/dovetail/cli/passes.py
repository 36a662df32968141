"""`--passes FILE`: policies of the user's own, for the verbs that plan."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dovetail.errors import BadInput

Passes = Annotated[list[Path] | None, typer.Option(help="A Python file that registers policies; may be repeated.")]


def load(files: Sequence[Path] | None) -> None:
    """Run each file, for the policies that it registers."""
    for file in files or ():
        spec = importlib.util.spec_from_file_location(file.stem, file) if file.suffix == ".py" else None
        if spec is None or spec.loader is None or not file.is_file():
            raise BadInput(f"--passes {file} is no Python file; name one that calls dovetail's register_policy()")
        try:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        except BadInput:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise BadInput(f"--passes {file} fails: {type(error).__name__}: {error}") from error
