"""What the event loop noted, chunk by chunk, as the spans of a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.timeline import Span

# node, lane, name, start, end, iteration, bytes, peer (-1 = none), priority
Raw = tuple[int, str, str, float, float, int, int, int, int | None]
_SLACK = 1 + 1e-12  # ends and starts that are the same instant may differ in the last bits


class _Growing:
    """A span that the next chunk of the same transfer may still lengthen."""

    __slots__ = ("end", "first", "nbytes", "peer")

    def __init__(self, raw: Raw) -> None:
        self.first = raw
        self.end, self.nbytes, self.peer = raw[4], raw[6], raw[7]

    def grow(self, raw: Raw) -> bool:
        """Take the chunk in if it belongs to the same transfer and leaves no gap."""
        first = self.first
        if raw[2] != first[2] or raw[5] != first[5] or not raw[6] or raw[3] > self.end * _SLACK:
            return False
        self.end = max(self.end, raw[4])
        self.nbytes += raw[6]
        if raw[7] != self.peer:
            self.peer = -1
        return True

    def span(self, names: Sequence[str]) -> Span:
        node, lane, name, start, _, iteration, _, _, priority = self.first
        return Span(
            node=names[node],
            lane=lane,
            name=name,
            start=start,
            end=self.end,
            iteration=iteration,
            nbytes=self.nbytes,
            peer=names[self.peer] if self.peer >= 0 else "",
            priority=priority,
        )


def joined(raw: Iterable[Raw], names: Sequence[str], *, since: float) -> tuple[Span, ...]:
    """Spans from `since` on; touching ones of the same transfer on one node and lane become one."""
    current: dict[tuple[str, str], _Growing] = {}
    done: list[_Growing] = []
    for entry in sorted(raw, key=lambda r: r[3]):
        if entry[4] <= since:
            continue
        key = (names[entry[0]], entry[1])
        last = current.get(key)
        if last is not None:
            if last.grow(entry):
                continue
            done.append(last)
        current[key] = _Growing(entry)
    spans = [growing.span(names) for growing in (*done, *current.values())]
    return tuple(sorted(spans, key=lambda s: (s.start, s.node, s.lane, s.end)))
