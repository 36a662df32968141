"""Timelines as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from dovetail.report.layout import by_node, tracks, zero
from dovetail.timeline import LANES, Span, Timeline

_MICRO = 1e6


def render(timelines: Mapping[str, Timeline]) -> str:
    """One process a node and one thread a lane; several timelines start at the same zero."""
    events: list[dict[str, Any]] = []
    for name, timeline in timelines.items():
        prefix = f"{name}: " if len(timelines) > 1 else ""
        begin, first = zero(timeline), len({e["pid"] for e in events}) + 1
        for pid, (node, spans) in enumerate(by_node(timeline).items(), start=first):
            events += _node(pid, prefix + node, spans, timeline.boundaries.get(node, ()), begin)
        events += [_note(first, note) for note in timeline.notes]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _node(pid: int, name: str, spans: list[Span], bounds: tuple[float, ...], begin: float) -> list[dict[str, Any]]:
    events = [_named("process_name", pid, 0, name), _sorted("process_sort_index", pid, 0, pid)]
    if len(bounds) > 1:
        events.append(_named("thread_name", pid, 0, "iteration"))
        pairs = itertools.pairwise(bounds)
        events += [_complete(pid, 0, f"iteration {i}", a - begin, b - begin, {}) for i, (a, b) in enumerate(pairs)]
    tid = 1
    for lane in LANES:
        # Perfetto drops events that overlap on one thread without nesting, so a lane may need several.
        for number, track in enumerate(tracks(s for s in spans if s.lane == lane)):
            events.append(_named("thread_name", pid, tid, lane if number == 0 else f"{lane} {number + 1}"))
            events.append(_sorted("thread_sort_index", pid, tid, tid))
            events += [_complete(pid, tid, s.name, s.start - begin, s.end - begin, _arguments(s)) for s in track]
            tid += 1
    return events


def _arguments(span: Span) -> dict[str, Any]:
    given = {"bytes": span.nbytes or None, "priority": span.priority, "peer": span.peer or None}
    return {"iteration": span.iteration, **{key: value for key, value in given.items() if value is not None}}


def _complete(pid: int, tid: int, name: str, start: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    # Both ends are rounded to whole nanoseconds, so that neighbours still touch without overlapping.
    stamp = round(start * _MICRO, 3)
    length = round(round(end * _MICRO, 3) - stamp, 3)
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": stamp, "dur": length, "args": args}


def _note(pid: int, note: str) -> dict[str, Any]:
    return {"ph": "i", "s": "p", "pid": pid, "tid": 0, "name": note, "ts": 0}


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def _sorted(kind: str, pid: int, tid: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"sort_index": index}}
