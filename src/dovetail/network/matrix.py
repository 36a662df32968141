"""What probing found out: the latency and bandwidth of every pair of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.errors import BadInput
from dovetail.network.collective import Floats

Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeMatrix:
    """Symmetric tables in the order of `hosts`; the diagonals are 0 and mean nothing."""

    hosts: tuple[str, ...]
    latency: Table  # seconds, one way
    bandwidth: Table = ()  # bytes per second; empty when only latency was probed

    def __post_init__(self) -> None:
        if len(set(self.hosts)) != len(self.hosts):
            doubled = min(h for h in self.hosts if self.hosts.count(h) > 1)
            raise BadInput(f"host {doubled!r} is twice in the matrix")
        for what, table in (("latency", self.latency), ("bandwidth", self.bandwidth)):
            if (table or what == "latency") and [len(row) for row in table] != [len(self.hosts)] * len(self.hosts):
                raise BadInput(f"the {what} table does not fit {len(self.hosts)} hosts; probe again")

    @classmethod
    def from_arrays(cls, hosts: Sequence[str], latency: Floats, bandwidth: Floats | None = None) -> ProbeMatrix:
        """Made symmetric: the longer of two latencies, the smaller of two bandwidths."""
        slow = np.maximum(latency, latency.T)
        thin = None if bandwidth is None else np.minimum(bandwidth, bandwidth.T)
        return cls(hosts=tuple(hosts), latency=_table(slow), bandwidth=() if thin is None else _table(thin))

    def only(self, hosts: Sequence[str]) -> ProbeMatrix:
        """The part of the matrix for these hosts, in this order."""
        missing = [h for h in hosts if h not in self.hosts]
        if missing:
            raise BadInput(f"host {missing[0]!r} is not in the matrix (it has {', '.join(self.hosts)}); probe it too")
        chosen = [self.hosts.index(h) for h in hosts]

        def part(table: Table) -> Table:
            return tuple(tuple(table[i][j] for j in chosen) for i in chosen) if table else ()

        return ProbeMatrix(hosts=tuple(hosts), latency=part(self.latency), bandwidth=part(self.bandwidth))

    def distances(self) -> list[Floats]:
        """What embedding and grouping take: latency, and the inverse of bandwidth if it was probed."""
        found = [np.array(self.latency)]
        if self.bandwidth:
            thin = np.array(self.bandwidth)
            found.append(np.divide(1.0, thin, out=np.zeros_like(thin), where=thin > 0))
        return found


def _table(values: Floats) -> Table:
    clean = values.copy()
    np.fill_diagonal(clean, 0.0)
    return tuple(tuple(float(v) for v in row) for row in clean)
