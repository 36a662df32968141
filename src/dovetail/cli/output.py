"""Where a verb's results go: a file, or standard output as `-`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from dovetail.errors import BadInput


def write_json(path: str | None, value: object) -> None:
    """Write the value as indented JSON to `path` (`-` = standard output, None = nowhere)."""
    if path is not None:
        write_text(path, msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def write_text(path: str, content: str) -> None:
    """Write the content and a line end to `path` (`-` = standard output)."""
    if path == "-":
        sys.stdout.write(content + "\n")
        return
    try:
        Path(path).write_text(content + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
