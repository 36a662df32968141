"""One finding of the doctor, and all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.errors import DovetailError

GOOD, LIMITED, BROKEN = "good", "limited", "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at and found; anything but GOOD comes with advice."""

    name: str
    state: str  # GOOD; LIMITED: training works, something else does not; BROKEN: training does not
    found: str
    advice: str = ""
    figures: Mapping[str, float | str] = field(default_factory=dict)


def usable(checks: Iterable[Check]) -> bool:
    """Whether one can train here."""
    return all(check.state != BROKEN for check in checks)


def guarded(name: str, look: Callable[[], Check], advice: str) -> Check:
    """The check's result; an error that dovetail raises on the way is a finding, too."""
    try:
        return look()
    except DovetailError as error:
        return Check(name=name, state=BROKEN, found=str(error), advice=advice)


def show(checks: Iterable[Check]) -> str:
    """A line each, with what to do below those that need it."""
    lines: list[str] = []
    for check in checks:
        mark = {GOOD: "ok", LIMITED: "--", BROKEN: "NO"}[check.state]
        lines.append(f"{mark}  {check.name:11} {check.found}")
        if check.advice:
            lines.append(f"{'':15} -> {check.advice}")
    return "\n".join(lines)
