"""Where things go in a picture of a timeline: nodes in order, and overlapping spans on tracks of their own."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from dovetail.timeline import Span, Timeline


def by_node(timeline: Timeline) -> dict[str, list[Span]]:
    """The spans of each node: workers first, then hubs and whatever else took part."""
    found: defaultdict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        found[span.node].append(span)
    # By length first, so that "hub 10" follows "hub 9".
    others = sorted(found.keys() - timeline.boundaries.keys(), key=lambda node: (len(node), node))
    return {node: found[node] for node in (*timeline.workers, *others)}


def zero(timeline: Timeline) -> float:
    """The instant that pictures count from: the first worker's first iteration begins."""
    starts = [b[0] for b in timeline.boundaries.values() if b] or [s.start for s in timeline.spans]
    return min(starts, default=0.0)


def tracks(spans: Iterable[Span]) -> list[list[Span]]:
    """The fewest tracks, each in order of time, such that no two spans on one track overlap."""
    laid: list[list[Span]] = []
    busy: list[tuple[float, int]] = []  # (end, track) of the span each track carries now
    free: list[int] = []
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        while busy and busy[0][0] <= span.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(laid))
            laid.append([])
        track = heapq.heappop(free)  # the lowest: a lane without overlap stays on its first track
        laid[track].append(span)
        heapq.heappush(busy, (span.end, track))
    return laid
