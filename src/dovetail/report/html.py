"""Timelines as one self-contained page: figures on top, all systems below on one time axis."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from dovetail.report.layout import by_node, tracks, zero
from dovetail.report.summary import Summary, decisions, summarize
from dovetail.report.text import latest, speedup
from dovetail.timeline import COMPUTE, DECIDE, LANES, RECEIVE, SEND, UPDATE, WAIT, Span, Timeline, format_overlap
from dovetail.units import format_bytes, format_seconds

# A row of the picture and the lanes it shows: to compute and to wait for it are one stream.
_ROWS = ((COMPUTE, (COMPUTE, WAIT)), (UPDATE, (UPDATE,)), (SEND, (SEND,)), (RECEIVE, (RECEIVE,)), (DECIDE, (DECIDE,)))
_MOST_TRACKS = 8

_COLUMNS: tuple[tuple[str, str, Callable[[Summary], str]], ...] = (
    (
        "Overlap α",
        "(N + C − T) / min(N, C): 1 = all that could be hidden was, - = hardly anything to hide",
        lambda s: format_overlap(s.communication_time, s.compute_time, s.iteration_time),
    ),
    ("ρ", "N / C: communication over computation", lambda s: "–" if s.rho is None else f"{s.rho:.2f}"),
    ("U", "share of an iteration in which an average worker computes", lambda s: f"{s.utilization:.0%}"),
    ("Exposed", "communication that no computation hides, per iteration", lambda s: format_seconds(s.exposed)),
    ("Straggler", "largest share of an iteration any worker waits", lambda s: f"{s.straggler:.0%}"),
    ("Latest worker", "whose computation ends how long after the first worker's", lambda s: latest(s)),
    ("Sent", "bytes per worker and iteration", lambda s: format_bytes(s.sent)),
    ("Received", "bytes per worker and iteration", lambda s: format_bytes(s.received)),
)


def render(timelines: Mapping[str, Timeline], *, title: str = "dovetail report") -> str:
    """The page; it needs nothing but a browser, and speed-ups are over the first timeline."""
    summaries = [summarize(timeline, name=name) for name, timeline in timelines.items()]
    strings: dict[str, int] = {"": 0}
    drawn = [_drawn(name, timeline, strings) for name, timeline in timelines.items()]
    data = json.dumps({"lanes": LANES, "timelines": drawn, "strings": list(strings)}, separators=(",", ":"))
    asset = files("dovetail.report") / "assets"
    parts = {
        "title": escape(title),
        "style": (asset / "page.css").read_text(encoding="utf-8"),
        "summary": _summary(summaries),
        "details": "\n".join(map(_details, summaries)),
        "data": data.replace("</", "<\\/").replace("<!--", "<\\u0021--"),  # must not end or comment out its script
        "script": "\n".join((asset / name).read_text(encoding="utf-8") for name in ("draw.js", "page.js")),
    }
    page = (asset / "page.html").read_text(encoding="utf-8")
    head, *rest = page.split("{{")
    return head + "".join(parts[key] + tail for key, tail in (piece.split("}}", 1) for piece in rest))


def _drawn(name: str, timeline: Timeline, strings: dict[str, int]) -> dict[str, Any]:
    """What the script needs: rows of tracks of columns, times in microseconds from the timeline's zero."""
    begin, rows = zero(timeline), []
    for node, spans in by_node(timeline).items():
        for label, lanes in _ROWS:
            laid = tracks(s for s in spans if s.lane in lanes)
            crowd = sorted((s for track in laid[_MOST_TRACKS - 1 :] for s in track), key=lambda s: s.start)
            shown = [*laid[: _MOST_TRACKS - 1], *([crowd] if crowd else [])]
            if shown:
                rows.append({"node": node, "label": label, "tracks": [_columns(t, begin, strings) for t in shown]})
    bounds = {node: [_micro(t - begin) for t in b] for node, b in timeline.boundaries.items()}
    about = " · ".join(dict.fromkeys(part for part in (timeline.source, timeline.policy) if part and part != name))
    return {
        "name": name,
        "about": about,
        "notes": [*timeline.notes, *decisions(timeline)],
        "bounds": bounds,
        "rows": rows,
    }


def _columns(track: Sequence[Span], begin: float, strings: dict[str, int]) -> dict[str, list[Any]]:
    def index(text: str) -> int:
        return strings.setdefault(text, len(strings))

    return {
        "start": [_micro(s.start - begin) for s in track],
        "end": [_micro(s.end - begin) for s in track],
        "lane": [LANES.index(s.lane) for s in track],
        "name": [index(s.name) for s in track],
        "peer": [index(s.peer) for s in track],
        "bytes": [s.nbytes for s in track],
        "priority": [s.priority for s in track],
        "iteration": [s.iteration for s in track],
    }


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _summary(summaries: Sequence[Summary]) -> str:
    longest = max((s.iteration_time for s in summaries), default=0.0) or 1.0
    heads = "".join(f'<th title="{escape(tip)}">{escape(label)}</th>' for label, tip, _ in _COLUMNS)
    lines = []
    for s in summaries:
        cells = "".join(f"<td>{escape(show(s))}</td>" for _, _, show in _COLUMNS)
        compute, waiting = min(s.compute_time, s.iteration_time), min(s.waiting, s.iteration_time)
        idle = max(0.0, s.iteration_time - compute - waiting)
        shares = (("compute", compute), ("wait", waiting), ("idle", idle))
        bar = "".join(
            f'<i class="{kind}" style="width:{100 * value / longest:.2f}%"'
            f' title="{_BAR[kind]}: {format_seconds(value)}"></i>'
            for kind, value in shares
        )
        spread = f"{format_seconds(s.iteration_min)} to {format_seconds(s.iteration_max)}, {s.iterations} iterations"
        lines.append(
            f'<tr><th scope="row">{escape(s.name)}</th><td title="{spread}">{format_seconds(s.iteration_time)}</td>'
            f'<td>{speedup(summaries[0], s)}</td><td class="bar"><span>{bar}</span></td>{cells}</tr>'
        )
    return (
        '<table class="summary"><thead><tr><th>System</th><th title="median, slowest worker">Iteration</th>'
        '<th title="over the first row">Speed-up</th>'
        '<th class="bar" title="an average worker\'s iteration">Computing · waiting · idle</th>'
        f"{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


_BAR = {"compute": "computes or updates", "wait": "waits for parameters", "idle": "does neither"}


def _details(summary: Summary) -> str:
    late = [(worker, format_seconds(after)) for worker, after in summary.lateness.items()]
    use = [(link, f"{share:.0%}") for link, share in summary.link_use.items() if share]
    moved = [
        (t.direction, "–" if t.priority is None else str(t.priority), format_bytes(t.nbytes), f"{t.transfers:.4g}")
        for t in summary.traffic
    ]
    return (
        f"<details><summary>{escape(summary.name)}: links, lateness and bytes by priority</summary><div>"
        + _listing("Link in use", ("link", "share of the run"), use)
        + _listing("Computation ends after the first worker's", ("worker", "later by"), late)
        + _listing("Per worker and iteration", ("direction", "priority", "bytes", "transfers"), moved)
        + "</div></details>"
    )


def _listing(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></figure>"
    )
