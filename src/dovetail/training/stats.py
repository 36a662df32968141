"""`dovetail.stats()`: how much communication was hidden, who is late, and what was sent at which priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.timeline import LEAST_SHARE
from dovetail.training.meter import Mark
from dovetail.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """One rank's figures: seconds per iteration over the last minute with the plan in force, sums since the start."""

    job: str
    policy: str
    rank: int
    world: int
    iterations: int  # since the start
    counted: int  # that the figures per iteration are the mean of
    iteration_s: float
    compute_s: float  # the training thread did not wait for results
    communication_s: float  # a link was in use
    exposed_s: float  # the training thread waited for results: communication that nothing hid
    alpha: float | None  # share of the shorter of the two that was hidden behind the other; None: it is too short
    exposed_total_s: float
    communication_total_s: float
    works: Mapping[int, float]  # rank -> seconds from a step to its last gradient, waiting left out
    sent: Mapping[int, int]  # priority (the smallest is the most urgent) -> bytes
    replans: int

    @property
    def lateness(self) -> dict[int, float]:
        """Rank -> how long after the first rank's its gradients are ready; ranks not heard of are left out."""
        first = min(self.works.values(), default=0.0)
        return {rank: work - first for rank, work in sorted(self.works.items())}

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for."""
        late = self.lateness
        return max(late, key=lambda rank: late[rank]) if len(late) > 1 else None

    def prometheus(self) -> str:
        """The figures as Prometheus reads them."""
        from dovetail.training.metrics import render  # only then is prometheus-client loaded

        return render(self)

    def __str__(self) -> str:
        alpha = "nothing to overlap" if self.alpha is None else f"alpha {self.alpha:.2f}"
        late = ", ".join(f"rank {rank} +{format_seconds(by)}" for rank, by in self.lateness.items())
        urgent = min(self.sent, default=0)
        first = f", {format_bytes(self.sent[urgent])} of it at the most urgent" if self.sent else ""
        lines = {
            "rank": f"{self.rank} of {self.world}, {self.policy}, {self.iterations} iterations, {self.replans} replans",
            "iteration": f"{format_seconds(self.iteration_s)}, mean of {self.counted}",
            "computing": format_seconds(self.compute_s),
            "communicating": f"{format_seconds(self.communication_s)}, exposed {format_seconds(self.exposed_s)}",
            "overlap": alpha,
            "gradients ready": late or "not known yet",
            "sent": f"{format_bytes(sum(self.sent.values()))} at {len(self.sent)} priorities{first}",
        }
        return "\n".join(f"{label:16}{text}" for label, text in lines.items())


def overlap(first: Mark, last: Mark) -> tuple[float, float, float, float, float | None]:
    """Per iteration between two marks: its time, computing, communicating, exposed, and alpha (0 to 1)."""
    count = last.iterations - first.iterations
    if count <= 0:
        return 0.0, 0.0, 0.0, 0.0, None
    took, exposed, busy = ((last.at - first.at) / count, (last.waited - first.waited) / count,
                           (last.busy - first.busy) / count)  # fmt: skip
    compute = took - exposed
    shorter = min(compute, busy)
    alpha = min(1.0, max(0.0, (busy - exposed) / shorter)) if shorter > LEAST_SHARE * took else None
    return took, compute, busy, exposed, alpha
