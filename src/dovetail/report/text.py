"""Summaries as one plain table, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.report.summary import Summary
from dovetail.timeline import format_overlap
from dovetail.units import format_bytes, format_seconds

_FIGURES: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("recorded by", lambda s: s.source),
    ("workers", lambda s: str(s.workers)),
    ("iterations", lambda s: str(s.iterations)),
    ("iteration time T", lambda s: format_seconds(s.iteration_time)),
    ("  fastest", lambda s: format_seconds(s.iteration_min)),
    ("  slowest", lambda s: format_seconds(s.iteration_max)),
    ("computing C", lambda s: format_seconds(s.compute_time)),
    ("communicating N", lambda s: format_seconds(s.communication_time)),
    ("  exposed", lambda s: format_seconds(s.exposed)),
    ("waiting", lambda s: format_seconds(s.waiting)),
    ("overlap alpha", lambda s: format_overlap(s.communication_time, s.compute_time, s.iteration_time)),
    ("rho = N / C", lambda s: "-" if s.rho is None else f"{s.rho:.2f}"),
    ("utilization U", lambda s: f"{s.utilization:.0%}"),
    ("straggler effect", lambda s: f"{s.straggler:.0%}"),
    ("sent per worker", lambda s: format_bytes(s.sent)),
    ("received per worker", lambda s: format_bytes(s.received)),
    ("latest worker", lambda s: latest(s)),
)


def render(summaries: Sequence[Summary]) -> str:
    """One column a timeline, speed-ups over the first; each timeline's notes follow below."""
    rows = [[label, *(show(s) for s in summaries)] for label, show in _FIGURES]
    if len(summaries) > 1:
        after = [label for label, _ in _FIGURES].index("computing C")
        rows.insert(after, ["speed-up", *(speedup(summaries[0], s) for s in summaries)])
    notes = [f"{s.name}: {note}" for s in summaries for note in s.notes]
    return "\n".join([table(["", *(s.name for s in summaries)], rows), *notes])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under a rule: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        aligned = (c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def speedup(first: Summary, other: Summary) -> str:
    """How many times faster `other` iterates than `first`."""
    return f"{first.iteration_time / other.iteration_time:.2f}x" if other.iteration_time else "-"


def latest(summary: Summary) -> str:
    """The worker whose gradients are ready last, and by how much on average."""
    if not summary.lateness:
        return "-"
    worker = max(summary.lateness, key=lambda w: summary.lateness[w])
    return f"{worker} +{format_seconds(summary.lateness[worker])}"
