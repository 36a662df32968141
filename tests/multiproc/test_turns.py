"""Who sends to several takes turns: hosts that all send to all do not drown each other's queues."""

from __future__ import annotations

import subprocess
import time
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


def rounds(rank: int, size: int) -> list[float]:
    """How long each of twenty sums took."""
    import torch.distributed as dist

    from dovetail.bench.push_pull import Summed
    from dovetail.engine.session import Options

    summed = Summed([4 << 20], [0], aggregation="shuffle", options=Options())
    found = []
    with summed.session:
        for _ in range(20):
            dist.barrier()
            begun = time.monotonic()
            summed.all()
            found.append(time.monotonic() - begun)
        dist.barrier()  # nobody leaves while another still waits
    return found


@pytest.mark.lab
def test_what_a_hosts_own_queue_drops_is_sent_again_at_once() -> None:
    with Lab(4, 62.5e6) as lab:
        for host in range(4):  # room for one chunk: without a second look TCP waits 200 ms in most of the rounds
            short = ["tbf", "rate", "500mbit", "burst", "190000", "limit", "70000"]
            subprocess.run([*lab.command(host, ["tc"]), "qdisc", "replace", "dev", "eth0", "root", *short], check=True)
        with ranks(4, rounds, hosts=lab, gloo=True) as group:
            taken = [max(one) for one in zip(*group.results(timeout=60), strict=True)]
    stuck = [seconds for seconds in taken if seconds > min(taken) + 0.15]
    assert len(stuck) <= 4, f"{len(stuck)} of {len(taken)} sums took 0.15 s longer than the shortest: {taken}"
