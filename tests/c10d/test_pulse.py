"""Signs of life through the store: a rank that stops giving them is named, one that comes back is not."""

from __future__ import annotations

import threading
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
        with pytest.raises(PeerLost, match=r"rank 2 gives no sign of life any more in step 7") as lost:
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
        pulses[2].close()
        first = pulses[0].cause(broken, 5)
        assert (first.peer, first.step, first.__cause__) == (2, 5, broken)
        pulses[0].close()  # it leaves after that; who comes later is told the same
        assert "rank 2 gives no sign of life any more in step 6" in str(pulses[1].cause(broken, 6))
        with pytest.raises(PeerLost, match="rank 2 gives"):
            watch(pulses[1], 0.5)
    finally:
        for each in pulses:
            each.close()


def test_an_error_while_all_ranks_live_is_told_to_them(store: dist.Store) -> None:
    pulses = [Pulse(store, rank=rank, world=2) for rank in range(2)]
    try:
        mine = pulses[0].cause(MemoryError("no room for 8 GB\nat all"), 4)
        assert str(mine) == "a collective of the process group failed in step 4: MemoryError: no room for 8 GB"
        with pytest.raises(PeerLost, match="rank 0 gave up in step 7: MemoryError: no room for 8 GB") as theirs:
            watch(pulses[1], 5.0)
        assert theirs.value.peer == 0
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


def test_a_store_that_has_gone_is_not_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.05)
    own = Pulse(Silent(gone=True), rank=0, world=2)
    with pytest.raises(PeerLost, match=r"the store has gone with the process that keeps it .* in step 7"):
        watch(own, 5.0)
    assert "failed in step 8, and the store has gone" in str(own.cause(RuntimeError("reset"), 8))


def test_a_store_that_hangs_keeps_nobody_from_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.05)
    hanging = Silent(gone=False)
    own = Pulse(hanging, rank=0, world=2)
    began = time.monotonic()
    own.tell("this batch is bad")
    assert time.monotonic() - began < 5.0
    hanging.over.set()


class Silent:
    """A store whose process is gone, or hangs until `over`."""

    def __init__(self, *, gone: bool) -> None:
        self.gone, self.over = gone, threading.Event()

    def clone(self) -> Silent:
        return self

    def set(self, *_: str) -> None:
        if self.gone:
            raise RuntimeError("Broken pipe")
        self.over.wait(60)

    check = get = compare_set = set
