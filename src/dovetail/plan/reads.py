"""TicTac's op properties: which reads an op needs, and what bringing a read in would allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dovetail.trace.graph import Profile

_NEVER = np.iinfo(np.int64).max  # M+ of a read that no op needs together with another


@dataclass(frozen=True)
class DepClass:
    """All ops that need the same set of reads, taken together."""

    reads: int  # bit i = the read with first-use rank i
    time: int  # of its ops, summed


def dep_classes(profile: Profile, op_time: Mapping[str, int]) -> list[DepClass]:
    """The distinct dependency sets of the graph; a network has about as many as it has parameters."""
    rank = profile.first_use
    deps: dict[str, int] = {}
    times: dict[int, int] = {}
    for op in profile.ops:
        dep = 0
        for name in op.inputs:
            dep |= deps[name]
        for name in op.reads:
            dep |= 1 << rank[name]
        deps[op.name] = dep
        times[dep] = times.get(dep, 0) + op_time[op.name]
    times.pop(0, None)
    return [DepClass(dep, time) for dep, time in times.items()]


class Outstanding:
    """Reads not yet brought in, with TicTac's P and M+ kept current as reads leave (UpdateProperties)."""

    def __init__(self, classes: list[DepClass], read_times: list[int]) -> None:
        self._read_times = read_times
        self._masks = [c.reads for c in classes]
        self._times = [c.time for c in classes]
        self._needs = bit_matrix(self._masks, len(read_times))  # class x read
        self._users = [np.flatnonzero(column) for column in self._needs.T]
        self._count = self._needs.sum(axis=1, dtype=np.int64)
        self._m: npt.NDArray[np.int64] = self._needs.astype(np.int64) @ np.array(read_times, dtype=np.int64)
        self.reads = (1 << len(read_times)) - 1
        self.p = [0] * len(read_times)
        self.eager: set[int] = set()  # outstanding reads with P > 0
        for lone in np.flatnonzero(self._count == 1).tolist():
            self._credit(lone)

    def remove(self, read: int) -> None:
        """The read is here: ops that waited for it and one other now count for the other."""
        self.reads &= ~(1 << read)
        self.eager.discard(read)
        users = self._users[read]
        self._count[users] -= 1
        self._m[users] -= self._read_times[read]
        for lone in users[self._count[users] == 1].tolist():
            self._credit(lone)

    def m_plus(self, read: int) -> float:
        """The least communication that activates an op which needs this read and another."""
        users = self._users[read]
        return float(self._m[users[self._count[users] > 1]].min(initial=_NEVER))

    def least_m_plus(self) -> int:
        """The outstanding read of least M+; among equals the one used first."""
        several = self._count > 1
        least = self._m.min(where=several, initial=_NEVER)
        found = 0
        for i in np.flatnonzero(several & (self._m == least)).tolist():
            found |= self._masks[i]
        found = found & self.reads or self.reads
        return (found & -found).bit_length() - 1

    def _credit(self, i: int) -> None:
        read = (self._masks[i] & self.reads).bit_length() - 1
        self.p[read] += self._times[i]
        if self.p[read] > 0:
            self.eager.add(read)


def bit_matrix(masks: list[int], width: int) -> npt.NDArray[np.bool_]:
    """Row i, column j: bit j of mask i."""
    if not masks:
        return np.zeros((0, width), dtype=bool)
    row = (width + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(row, "little") for mask in masks), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(masks), row), axis=1, count=width, bitorder="little").astype(bool)
