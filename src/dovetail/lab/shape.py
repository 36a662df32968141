"""Rates as `tbf` settings: accurate with TCP's large segments, cheap for the host's cores, and short of queue.

Chosen by measuring 4 hosts at 500 Mbit/s on 2 cores, one stream, 3-to-1 incast, ring and all-to-all: a unit costs the
kernel about as much at 16 KiB as at 64 KiB, so a ring took 1.6 cores with 16 KiB units and 0.6 with 64 KiB; a burst of
1 ms lost 3 to 10 % when other work made timers late, 3 ms did not; a queue of 4 units keeps an urgent message within
1.4 ms behind one stream and 4 ms in an incast, and the link full in both.

Both ends of a link are alike. A long queue at the host's own end spares eight hosts that shuffle most of their drops
(1.45 of the bound instead of 1.81), but what a host receives is acknowledged behind all it sends: with a hub, an
iteration of VGG-19 shapes took 1.01 s instead of 648 ms.
"""

from __future__ import annotations

import math

from dovetail.errors import BadInput

SEGMENT_TIME = 1.05e-3  # seconds a unit of TCP may occupy the slowest link
LEAST_SEGMENT, LARGEST_SEGMENT = 8 * 1024, 64 * 1024  # bytes; the kernel makes none above 64 KiB
BURST_TIME = 3e-3  # seconds of rate that may be caught up after a late timer
QUEUE_TIME = 4e-3  # seconds; what waits in a link at most
QUEUE_SEGMENTS = 4  # a queue below this cannot hold one unit of each flow of a small incast


def segment(slowest: float) -> int:
    """Bytes of the largest unit that hosts hand to the network of a lab, by its slowest link (0 = none is shaped)."""
    if slowest == 0:
        return LARGEST_SEGMENT
    return max(LEAST_SEGMENT, min(LARGEST_SEGMENT, round(slowest * SEGMENT_TIME)))


def tbf(rate: float, unit: int) -> list[str]:
    """Arguments of `tc qdisc ... tbf` for `rate` bytes per second and units of at most `unit` bytes."""
    if not (rate > 0 and math.isfinite(rate)):
        raise BadInput(f"a link of {rate!r} bytes/s cannot be shaped; give a finite rate above 0, or 0 for unshaped")
    burst = max(2 * unit, round(rate * BURST_TIME))
    limit = max(QUEUE_SEGMENTS * unit, round(rate * QUEUE_TIME))
    return ["tbf", "rate", f"{round(rate * 8)}bit", "burst", str(burst), "limit", str(limit)]
