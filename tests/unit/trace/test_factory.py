"""MODULE:FACTORY: what is understood and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.errors import BadInput
from dovetail.trace.factory import call_factory

SOURCE = """
def make(): return "model", "inputs", "loss"
def lossless(): return "model", "inputs"
def lone(): return "model"
value = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "factory_under_test.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize("module", ["factory_under_test", "factory_under_test.py"])
def test_module_name_and_file_both_work(folder: Path, module: str) -> None:
    assert call_factory(f"{module}:make", folder=folder) == ("model", "inputs", "loss")
    assert call_factory(f"{module}:lossless", folder=folder) == ("model", "inputs", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("factory_under_test", "is not MODULE:FACTORY"),
        (":make", "is not MODULE:FACTORY"),
        ("no_such_module_here:make", "cannot import 'no_such_module_here'"),
        ("no_such_file.py:make", "does not exist"),
        ("factory_under_test:absent", "has no function 'absent'"),
        ("factory_under_test:value", "has no function 'value'"),
        ("factory_under_test:lone", "returned a str"),
    ],
)
def test_mistakes_are_named(folder: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call_factory(text, folder=folder)
