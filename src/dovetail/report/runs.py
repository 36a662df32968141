"""Saved timelines found again, by file or by directory, each under a name of its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.timeline import Timeline

_MARK = b'"dovetail.timeline"'  # what codec.save writes within the first line or two


def load_runs(paths: Iterable[str | Path]) -> dict[str, Timeline]:
    """Timelines by name (the file's, with its directory's where two are alike), in the order given."""
    files = [file for path in paths for file in _files(Path(path))]
    stems = [file.stem for file in files]
    names = [f.stem if stems.count(f.stem) == 1 else f"{f.absolute().parent.name}/{f.stem}" for f in files]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise BadInput(f"two runs are called {twice!r}; rename one of the files, so that they can be told apart")
    return {name: codec.load(Timeline, file) for name, file in zip(names, files, strict=True)}


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.glob("*.json")) if _is_timeline(file)]
    if not found:
        raise BadInput(f"directory {path} holds no saved timeline; bench and simulate write them with --save")
    return found


def _is_timeline(file: Path) -> bool:
    with file.open("rb") as opened:
        return _MARK in opened.read(200)
