"""Who sends to several takes turns: hosts that all send to all do not drown each other's queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import ranks

from dovetail.lab import Lab


def segments() -> tuple[int, int]:
    """That this host has sent, and sent again because they were lost on the way."""
    names, values = (line.split()[1:] for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Tcp:")
    counts = dict(zip(names, map(int, values), strict=True))
    return counts["OutSegs"], counts["RetransSegs"]


def shuffle(rank: int, size: int) -> tuple[int, int]:
    import torch.distributed as dist

    from dovetail.bench.push_pull import Summed
    from dovetail.engine.session import Options

    summed = Summed([16 << 20], [0], aggregation="shuffle", options=Options())
    with summed.session:
        summed.all()  # the first one finds out what the links carry
        dist.barrier()
        sent, again = segments()
        for _ in range(2):
            summed.all()
        dist.barrier()
        now_sent, now_again = segments()
    return now_sent - sent, now_again - again


@pytest.mark.lab
def test_a_shuffle_loses_next_to_nothing_on_short_queues() -> None:
    with Lab(4, 62.5e6) as lab, ranks(4, shuffle, hosts=lab, gloo=True) as group:
        counts = group.results(timeout=60)
    sent, again = (sum(column) for column in zip(*counts, strict=True))
    assert sent > 4 * 16 * 1024 * 1024 * 3 // 4 * 2 * 2 // 1500, "the segments were counted elsewhere"
    assert again < 0.002 * sent, f"{again} of {sent} segments were lost"
