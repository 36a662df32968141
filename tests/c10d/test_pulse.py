"""Signs of life through the store: a rank that stops giving them is named, one that comes back is not."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from dovetail.c10d import pulse
from dovetail.c10d.pulse import Pulse
from dovetail.errors import PeerLost


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    monkeypatch.setattr(pulse, "EVERY", 0.05)
    monkeypatch.setattr(pulse, "SILENT", 1.0)
    return dist.PrefixStore("test", dist.TCPStore("127.0.0.1", 0, 1, is_master=True))


def watch(own: Pulse, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        own.check(7)
        time.sleep(0.05)


def test_only_the_rank_that_fell_silent_is_named(store: dist.Store) -> None:
    pulses = [Pulse(store, rank=rank, world=3) for rank in range(3)]
    try:
        watch(pulses[0], 1.5)  # all live, however long the wait
        pulses[0].rest()
        pulses[2].close()
        time.sleep(1.2)  # silence while nobody waits is nobody's business; it counts from the first look
        watch(pulses[0], 0.5)
        with pytest.raises(PeerLost, match=r"rank 2 has given no sign of life .* in step 7") as lost:
            watch(pulses[0], 5.0)
        assert lost.value.peer == 2
    finally:
        for each in pulses:
            each.close()
            each.close()


def test_the_cause_of_a_broken_collective_is_who_beats_no_more(store: dist.Store) -> None:
    pulses = [Pulse(store, rank=rank, world=3) for rank in range(3)]
    broken = RuntimeError("Connection reset by peer")
    try:
        time.sleep(0.2)
        nobody = pulses[0].cause(broken, 4)
        assert (nobody.peer, nobody.step) == (-1, 4)
        assert "failed in step 4: Connection reset by peer" in str(nobody)
        pulses[2].close()
        assert pulses[0].cause(broken, 5).peer == 2
        pulses[0].close()  # it leaves after that; who comes later is told the same
        assert "in step 6 as rank 2 has gone: Connection" in str(pulses[1].cause(broken, 6))
        pulses[1].tell("ran out of memory")
        assert "rank 1 gave up in step 7: ran out of memory" in str(pulses[1].cause(broken, 7))
    finally:
        for each in pulses:
            each.close()


def test_the_first_to_give_up_is_whom_all_hear_of(store: dist.Store) -> None:
    pulses = [Pulse(store, rank=rank, world=2) for rank in range(2)]
    pulses[1].tell("this batch is bad")
    pulses[0].tell("rank 1 has gone")
    assert [each.cause(RuntimeError("reset"), 3).peer for each in pulses] == [1, 1]
    for each in pulses:
        each.close()
