"""The arrows of the architecture, enforced: who may import whom, how long a file may be, what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dovetail"
NATIVE = ROOT / "native"
LONGEST = 400  # lines; a longer file hides a second idea

BASE = {"errors", "units", "codec", "timeline", "calls"}
# Data that other stages read without the stage that makes it; it imports nothing but BASE.
DATA = {"trace.graph", "network.model"}

# A package may import itself, BASE and what is named here: a package, or one module of it.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "codec": {"errors"},
    "timeline": set(),
    "calls": set(),
    "trace": set(),
    "network": set(),
    "plan": {"trace.graph", "network"},
    "simulate": {"plan", "trace.graph", "network"},
    "engine": {"plan", "_native"},
    "c10d": {"engine", "plan", "trace.graph", "network.model"},
    "training": {"engine", "plan", "simulate", "trace", "network", "c10d"},
    "lab": {"network"},
    "bench": {"lab", "training", "c10d", "engine", "plan", "simulate", "trace", "network"},
    "report": set(),
    "integrations": {"training"},
    "doctor": {"engine", "lab", "plan", "trace.graph", "bench.emulate", "bench.models"},
    "reproduce": {"simulate", "plan", "network", "trace.graph", "bench.models"},
}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
MAY_USE_THE_PUBLIC_NAMES = {"bench", "cli", "doctor"}  # the others would import what imports them
MAY_USE_TORCH = {"trace", "training", "c10d", "bench", "cli", "doctor", "integrations"}
HEAVY = {"torch", "torchvision"}

# `dovetail/__init__.py` offers the public names; what needs torch must be loaded on first use.
PUBLIC = "__init__"

NATIVE_ORDER = ("base", "wire", "net", "sched", "reduce", "engine", "python")


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def native_files() -> list[Path]:
    return sorted(file for kind in ("*.h", "*.cc", "*.cpp", "*.hpp") for file in NATIVE.rglob(kind))


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports, anywhere in it, with its line; type-only imports count as well."""
    package = ("dovetail", *path.relative_to(SOURCE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            # `from dovetail import codec` names a module, `from dovetail.units import parse_rate` does not.
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                yield node.lineno, whole if is_module(whole) else module


def is_module(name: str) -> bool:
    head, *rest = name.split(".")
    place = SOURCE.joinpath(*rest)
    return head == "dovetail" and (place.is_dir() or place.with_suffix(".py").exists())


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def allowed(layer: str, module: str) -> bool:
    """May a file of `layer` import dovetail's `module` (written without `dovetail.`)?"""
    package = module.split(".")[0]
    if module == "dovetail":
        return layer in MAY_USE_THE_PUBLIC_NAMES
    if package == layer or (package in BASE and layer not in BASE):
        return True
    return any(module == permit or module.startswith(f"{permit}.") for permit in MAY_IMPORT[layer])


@pytest.mark.parametrize("path", named(python_files()))
def test_imports_follow_the_arrows(path: Path) -> None:
    layer = layer_of(path)
    if layer == PUBLIC:
        return
    assert layer in MAY_IMPORT, f"{layer} is not in the layout: add it to the architecture first"
    ours = ((line, name.removeprefix("dovetail.")) for line, name in imports(path) if name.split(".")[0] == "dovetail")
    wrong = [f"line {line}: {layer} must not import {name}" for line, name in ours if not allowed(layer, name)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", named(python_files()))
def test_only_the_layers_around_a_model_know_torch(path: Path) -> None:
    layer = layer_of(path)
    used = [f"line {line}: {name}" for line, name in imports(path) if name.split(".")[0] in HEAVY]
    assert layer in MAY_USE_TORCH or not used, f"{layer} must not import torch: {used}"


@pytest.mark.parametrize("name", sorted(DATA))
def test_data_imports_only_base(name: str) -> None:
    path = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
    ours = {n.removeprefix("dovetail.") for _, n in imports(path) if n.startswith("dovetail.")}
    assert ours <= BASE


@pytest.mark.parametrize("path", named([*python_files(), *native_files()]))
def test_no_file_hides_a_second_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{lines} lines; split it by idea"


@pytest.mark.parametrize("path", named([f for f in native_files() if f.relative_to(NATIVE).parts[0] in NATIVE_ORDER]))
def test_native_includes_point_up_the_list(path: Path) -> None:
    layer = NATIVE_ORDER.index(path.relative_to(NATIVE).parts[0])
    found = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    below = [f for f in found if f.split("/")[0] in NATIVE_ORDER[layer + 1 :]]
    assert not below, f"{path.name} includes {below}, which stand after {NATIVE_ORDER[layer]} in the list"


def test_only_the_binding_file_knows_python() -> None:
    knowing = {f.relative_to(NATIVE).parts[0] for f in native_files() if "nanobind/" in f.read_text(encoding="utf-8")}
    assert knowing <= {"python"}


# What the interpreter itself may not notice when dovetail is imported.
EFFECTS = """
import os, signal, sys, threading, warnings
def state():
    return (dict(os.environ), threading.active_count(), len(os.listdir("/proc/self/fd")), os.getcwd(),
            [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)], sys.excepthook, list(sys.path))
before = state()
import dovetail
assert state() == before, "importing dovetail changed the process"
assert "torch" not in sys.modules, "importing dovetail imported torch"
assert "dovetail._native" not in sys.modules, "importing dovetail loaded the native engine"
"""

LISTS_WITHOUT_TORCH = """
import sys
from dovetail.cli.main import build, run
assert run(["--help"]) == 0
for verb in sys.argv[1:]:
    assert run([verb, "--help"]) == 0, verb
assert "torch" not in sys.modules, [m for m in sys.modules if m.startswith("dovetail.")]
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT / "src")


def test_importing_dovetail_has_no_side_effects() -> None:
    done = python(EFFECTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_help_and_planning_do_not_import_torch() -> None:
    light = [verb for verb in ("plan", "simulate", "report", "hub") if (SOURCE / "cli" / f"{verb}.py").exists()]
    done = python(LISTS_WITHOUT_TORCH, *light)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("layer", "module", "expected"),
    [
        ("simulate", "engine.client", False),
        ("engine", "training", False),
        ("report", "plan.schedule", False),
        ("plan", "trace.record", False),
        ("plan", "trace.graph", True),
        ("units", "errors", True),
        ("errors", "units", False),
        ("engine", "dovetail", False),
        ("reproduce", "bench.models", True),
        ("reproduce", "bench.train", False),
    ],
)
def test_the_rule_itself(layer: str, module: str, expected: bool) -> None:
    assert allowed(layer, module) is expected
