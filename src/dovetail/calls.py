"""Packages that are also verbs: `dovetail.plan(...)` is a call, `dovetail.plan.tac` a module."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, function: str) -> None:
    """Calling the imported `package` calls `function`, given as `module:name` and imported only then."""
    module_name, _, name = function.partition(":")

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(module_name), name)(*args, **kwargs)

    sys.modules[package].__class__ = CallableModule
