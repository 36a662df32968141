"""Caramel's packing: give each group a time on the link, under the backward pass or the next forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.plan.schedule import BACKWARD, FORWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What must travel: not before `ready` in this iteration, not after `deadline` into the next forward pass."""

    ready: float  # seconds, its last gradient
    deadline: float  # seconds from the start of the next forward pass, its first reader
    duration: float  # seconds on the link


@dataclass(frozen=True, slots=True)
class Placement:
    """A group's time on the link; the next forward pass starts at `Packing.forward_start`."""

    group: int
    window: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Placements that never overlap, and how long computation stands still for them."""

    placements: tuple[Placement, ...]
    stall: float
    forward_start: float


def pack(groups: Sequence[Group], *, backward_end: float) -> Packing:
    """Largest first: in the backward pass if it fits, else in the forward pass, else where it costs least."""
    # Backward times count from the iteration's start, forward times from the next forward pass's start: the stall
    # between them grows while groups are placed, and moves nothing that has a place.
    backward = _Lane(backward_end)
    forward = _Lane(max((g.deadline for g in groups), default=0.0))
    left = []
    for i in sorted(range(len(groups)), key=lambda i: (-groups[i].duration, i)):
        group = groups[i]
        if not (
            backward.place_earliest(i, group.duration, group.ready, backward_end)
            or forward.place_latest(i, group.duration, 0.0, group.deadline)
        ):
            left.append(i)
    after, before = 0.0, 0.0  # stall used behind the backward pass, and ahead of the forward pass
    for i in left:
        group = groups[i]
        tail = 0.0 if after else backward_end - max(backward.last_busy(), min(group.ready, backward_end))
        head = 0.0 if before else min(forward.first_busy(), group.deadline)
        if group.duration - tail <= group.duration - head:
            start = backward_end + after - tail
            backward.busy.append((start, start + group.duration, i))
            after = max(0.0, start + group.duration - backward_end)
        else:
            end = head - before
            forward.busy.append((end - group.duration, end, i))
            before = max(0.0, group.duration - end)
    shift = backward_end + after + before
    placements = [Placement(i, BACKWARD, start, end) for start, end, i in backward.busy]
    placements += [Placement(i, FORWARD, start + shift, end + shift) for start, end, i in forward.busy]
    return Packing(
        placements=tuple(sorted(placements, key=lambda p: p.group)), stall=after + before, forward_start=shift
    )


class _Lane:
    """One pass's time on the link, with what is taken of it."""

    def __init__(self, length: float) -> None:
        self.length = length
        self.busy: list[tuple[float, float, int]] = []

    def place_earliest(self, group: int, duration: float, earliest: float, latest: float) -> bool:
        start = earliest
        for begin, end, _ in self.busy:
            if start + duration <= begin:
                break
            start = max(start, end)
        return self._take(group, start, start + duration) if start + duration <= latest else False

    def place_latest(self, group: int, duration: float, earliest: float, latest: float) -> bool:
        end = latest
        for begin, finish, _ in reversed(self.busy):
            if end - duration >= finish:
                break
            end = min(end, begin)
        return self._take(group, end - duration, end) if end - duration >= earliest else False

    def last_busy(self) -> float:
        return self.busy[-1][1] if self.busy else 0.0

    def first_busy(self) -> float:
        return self.busy[0][0] if self.busy else self.length

    def _take(self, group: int, start: float, end: float) -> bool:
        self.busy.append((start, end, group))
        self.busy.sort()
        return True
