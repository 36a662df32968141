"""Frozen data to versioned JSON files and back; the one place that knows the envelope."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dovetail.errors import BadInput

T = TypeVar("T")
VERSION = 1


class _Envelope(msgspec.Struct):
    format: str
    version: int
    data: msgspec.Raw


def _format_of(kind: type) -> str:
    return f"dovetail.{kind.__name__.lower()}"


def encode(value: Any) -> bytes:
    """The value as an indented JSON envelope `{"format", "version", "data"}`."""
    data = msgspec.Raw(msgspec.json.encode(value))
    envelope = _Envelope(_format_of(type(value)), VERSION, data)
    return msgspec.json.format(msgspec.json.encode(envelope), indent=1) + b"\n"


def decode(kind: type[T], text: bytes, *, source: str = "input") -> T:
    """The value back from its envelope; `source` names the file in error messages."""
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
    except msgspec.DecodeError as error:
        raise BadInput(f"{source} is not a dovetail file: {error}") from None
    if envelope.format != _format_of(kind):
        raise BadInput(f"{source} holds {envelope.format!r}, but {_format_of(kind)!r} is needed here")
    if envelope.version != VERSION:
        raise BadInput(f"{source} has format version {envelope.version}; this dovetail reads version {VERSION}")
    try:
        return msgspec.json.decode(envelope.data, type=kind)
    except (msgspec.ValidationError, BadInput) as error:
        raise BadInput(f"{source}: {error}") from None


def save(value: Any, path: str | Path) -> None:
    """Write the value to `path` (`-` = standard output); a reader never sees half a file."""
    if str(path) == "-":
        sys.stdout.write(encode(value).decode())
        return
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_bytes(encode(value))
        partial.replace(target)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror}") from None


def load(kind: type[T], path: str | Path) -> T:
    """Read a value that `save` wrote."""
    try:
        text = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    return decode(kind, text, source=str(path))
