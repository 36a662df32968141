"""`bench urgent`: how soon the most urgent chunk is at the peer while a large transfer fills the link."""

from __future__ import annotations

from dovetail.bench.crew import Crew
from dovetail.bench.orders import UrgentOrder, UrgentPost, UrgentReply
from dovetail.bench.result import Times, UrgentResult
from dovetail.bench.stage import Site, Tell, built
from dovetail.errors import BadInput

SAMPLES = 8  # small chunks in one large transfer
UNSHAPED = 1e9  # bytes per second, to space the samples where there is no rate


def bench_urgent(*, rate: float, small: int, large: int, rounds: int = 3, tell: Tell = lambda _: None) -> UrgentResult:
    """Two hosts, the same transfer with priorities and first in, first out, in turns."""
    if rounds < 1 or not 4 <= small <= large:
        raise BadInput(
            f"{rounds} rounds of {small} bytes in {large}; give 1 round or more, and 4 bytes or more in more"
        )
    with built(Site(workers=2, rate=rate), hubs=0, tell=tell) as stage:
        post = UrgentPost(large=large // 4 * 4, small=small // 4 * 4, samples=SAMPLES, rate=stage.limit)
        gap = large / (rate or UNSHAPED) / (2 * SAMPLES)  # all within the transfer's first half
        seen: dict[bool, list[float]] = {True: [], False: []}
        with Crew(stage.lab, "urgent", "dovetail.bench.urgent_worker", post, workers=2, number=0) as crew:
            crew.hear(UrgentReply)
            for number in range(rounds):
                for urgent in (True, False):
                    tell(f"round {number + 1} of {rounds}, {'by priority' if urgent else 'first in, first out'}")
                    sent, arrived = crew.ask(UrgentOrder(urgent=urgent, gap=gap), UrgentReply)
                    both = zip(sent.instants, arrived.instants, strict=True)
                    seen[urgent] += [there - here for here, there in both]
        return UrgentResult(
            bench="urgent",
            rate=rate,
            measured_rate=stage.measured,
            small_bytes=post.small,
            large_bytes=post.large,
            priority_s=Times.of(seen[True]),
            fifo_s=Times.of(seen[False]),
            notes=stage.notes,
        )
