"""What a reproduction finds, line by line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of a paper beside ours; `paper` is None where the paper shows a curve without numbers."""

    where: str  # "figure 7"
    what: str
    paper: float | None
    ours: float
    unit: str = ""

    @property
    def off(self) -> float | None:
        """How far ours is from the paper's, as a share of it."""
        return self.ours / self.paper - 1 if self.paper else None


@dataclass(frozen=True, kw_only=True)
class Study:
    """One paper: its lines, and what had to be assumed where it leaves a number out."""

    paper: str
    lines: tuple[Line, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """All that one run of `dovetail reproduce` found."""

    studies: tuple[Study, ...]


def percent(faster: float, slower: float) -> float:
    """How much more throughput `faster` seconds give than `slower` seconds, in per cent."""
    return 100 * (slower / faster - 1)
