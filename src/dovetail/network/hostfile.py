"""Host lists as torchrun, mpirun and LightGBM read them; lines are reordered, never rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """The lines of a host list; `places` are the line numbers (from 0) that name a host."""

    lines: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The name of each host: what stands before `:port`, ` slots=4` or ` 12400`."""
        return tuple(_name(self.lines[i].split()[0]) for i in self.places)

    def reordered(self, order: Sequence[int]) -> str:
        """The text with host lines in the new order; comments and empty lines stay where they are."""
        lines = list(self.lines)
        for place, rank in zip(self.places, order, strict=True):
            lines[place] = self.lines[self.places[rank]]
        return "\n".join(lines) + "\n"


def _name(word: str) -> str:
    """Without its port; a bare IPv6 address has colons of its own."""
    return word.rsplit(":", 1)[0] if word.count(":") == 1 or "]:" in word else word


def parse_hosts(text: str, *, source: str = "the host list") -> HostFile:
    """The host list in `text`."""
    lines = tuple(text.splitlines())
    places = tuple(i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    found = HostFile(lines=lines, places=places)
    if not places:
        raise BadInput(f"{source} names no host; write one host per line")
    doubled = [h for h in found.hosts if found.hosts.count(h) > 1]
    if doubled:
        raise BadInput(f"{source} names {doubled[0]!r} twice; give each host one line")
    return found


def read_hosts(path: str | Path) -> HostFile:
    """The host list in a file."""
    return parse_hosts(_text(path), source=str(path))


def read_places(path: str | Path, hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """Where each of the hosts stands, from lines like `node7 datacenter1 row2 rack3`: the widest place first."""
    listed = parse_hosts(_text(path), source=str(path))
    places = {name: tuple(listed.lines[i].split()[1:]) for name, i in zip(listed.hosts, listed.places, strict=True)}
    missing = [host for host in hosts if not places.get(host)]
    if missing:
        raise BadInput(f"{path} does not say where {missing[0]!r} stands; write `{missing[0]} ROW RACK`")
    return [places[host] for host in hosts]


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the host list {path}: {getattr(error, 'strerror', None) or error}") from None
