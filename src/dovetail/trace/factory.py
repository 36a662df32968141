"""`MODULE:FACTORY` as written on the command line becomes what the factory returns."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from dovetail.errors import BadInput


def call_factory(text: str, *, folder: Path) -> tuple[Any, Any, Any]:
    """(model, example inputs, loss or None) from `package.module:function` or `file.py:function` under `folder`."""
    module_name, colon, function_name = text.rpartition(":")
    if not colon or not module_name or not function_name:
        raise BadInput(f"{text!r} is not MODULE:FACTORY; write it like my_package.model:make or model.py:make")
    place = folder
    if module_name.endswith(".py"):
        file = folder / module_name
        if not file.is_file():
            raise BadInput(f"{file} does not exist; MODULE is a dotted name or a path ending in .py")
        place, module_name = file.resolve().parent, file.stem
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(f"cannot import {module_name!r}: {error}") from error
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise BadInput(f"{module_name!r} has no function {function_name!r}")
    made = factory()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise BadInput(f"{text} returned a {type(made).__name__}; it must return (model, example_inputs, loss)")
    return made[0], made[1], made[2] if len(made) == 3 else None
