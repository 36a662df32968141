"""What `--json FILE` of a verb does."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from dovetail.errors import BadInput


def write_json(path: str | None, value: object) -> None:
    """Write the value as indented JSON to `path` (`-` = standard output, None = nowhere)."""
    if path is None:
        return
    text = msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
