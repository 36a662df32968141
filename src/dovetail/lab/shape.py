"""Rates as `tbf` settings: accurate with TCP's large segments, cheap for the host's cores, and short of queue.

Chosen by measuring 4 hosts at 500 Mbit/s on 2 cores, one stream, 3-to-1 incast, ring and all-to-all: a unit costs the
kernel about as much at 16 KiB as at 64 KiB, so a ring took 1.6 cores with 16 KiB units and 0.6 with 64 KiB; a burst of
1 ms lost 3 to 10 % when other work made timers late, 3 ms did not; a queue of 4 units keeps an urgent message within
1.4 ms behind one stream and 4 ms in an incast, and the link full in both.

That is the network's end of a link. A host's own end holds what its sockets give it, as hosts do: Linux lets each
connection have about two units there and then holds its sender back. With a short queue at that end, 8 hosts that
shuffled 16 MiB at 500 Mbit/s dropped 4300 units of their own, which TCP takes for a stall, and 140 in the network.
"""

from __future__ import annotations

import math

from dovetail.errors import BadInput

SEGMENT_TIME = 1.05e-3  # seconds a unit of TCP may occupy the slowest link
LEAST_SEGMENT, LARGEST_SEGMENT = 8 * 1024, 64 * 1024  # bytes; the kernel makes none above 64 KiB
BURST_TIME = 3e-3  # seconds of rate that may be caught up after a late timer
QUEUE_TIME = 4e-3  # seconds; what waits in a link at most
QUEUE_SEGMENTS = 4  # a queue below this cannot hold one unit of each flow of a small incast
OWN_SEGMENTS = 256  # of a host's own queue: two for each of more connections than a host of a lab has


def segment(slowest: float) -> int:
    """Bytes of the largest unit that hosts hand to the network of a lab, by its slowest link (0 = none is shaped)."""
    if slowest == 0:
        return LARGEST_SEGMENT
    return max(LEAST_SEGMENT, min(LARGEST_SEGMENT, round(slowest * SEGMENT_TIME)))


def tbf(rate: float, unit: int, *, own: bool) -> list[str]:
    """Arguments of `tc qdisc ... tbf` for `rate` bytes per second and units of at most `unit` bytes.

    `own`: at the end of the link where the host is.
    """
    if not (rate > 0 and math.isfinite(rate)):
        raise BadInput(f"a link of {rate!r} bytes/s cannot be shaped; give a finite rate above 0, or 0 for unshaped")
    burst = max(2 * unit, round(rate * BURST_TIME))
    limit = OWN_SEGMENTS * unit if own else max(QUEUE_SEGMENTS * unit, round(rate * QUEUE_TIME))
    return ["tbf", "rate", f"{round(rate * 8)}bit", "burst", str(burst), "limit", str(limit)]
