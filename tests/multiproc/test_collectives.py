"""Collectives on tensors that no plan knew beforehand, over the real engine; ranks are threads on loopback."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodes import open_rank, values

from dovetail.engine.collectives import IN_FLIGHT, Collectives
from dovetail.errors import BadInput

PATTERNS = ["shuffle", "ring", "halving-doubling", "tree"]


def mine(rank: int, count: int, call: int = 0) -> Any:
    return np.random.default_rng((rank, count, call)).standard_normal(count, dtype=np.float32)


@pytest.mark.parametrize("aggregation", PATTERNS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_reduce_sums_any_size_and_repeats(aggregation: str, world: int, tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with open_rank(str(tmp_path), rank, world, [4], aggregation=aggregation) as session:
            calls = Collectives(session, chunk_bytes=8192)
            for call in range(3):
                for count in (0, 1, 7, 5000, 40_001):
                    data = mine(rank, count, call)
                    assert calls.all_reduce(data.ctypes.data, data.nbytes, "f32").wait()
                    true = np.sum([mine(r, count, call) for r in range(world)], axis=0)
                    np.testing.assert_allclose(data, true, rtol=1e-5, atol=1e-5)

    values(world, body)


def test_more_calls_than_channels_may_be_under_way_and_a_rank_may_come_late(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with open_rank(str(tmp_path), rank, 3, [4]) as session:
            calls = Collectives(session)
            time.sleep(0.2 * rank)
            count = 3 * IN_FLIGHT
            data = [mine(rank, 3000, call) for call in range(count)]
            pending = [calls.all_reduce(d.ctypes.data, d.nbytes, "f32", divisor=3) for d in data]
            for call in range(count):
                assert pending[call].wait()
                true = np.mean([mine(r, 3000, call) for r in range(3)], axis=0)
                np.testing.assert_allclose(data[call], true, rtol=1e-4, atol=1e-5)

    values(3, body)


AHEAD = 2 << 20  # bytes that a rank may have under way, of sums that begin with it


@pytest.mark.parametrize("aggregation", PATTERNS)
def test_who_comes_early_waits_with_most_of_a_large_call_and_all_of_it_arrives(
    aggregation: str, tmp_path: Path
) -> None:
    world, count, late = 3, 6_000_001, 1
    sums = [np.sum([mine(r, count, call) for r in range(world)], axis=0) for call in range(2)]
    measured = threading.Barrier(world)

    def body(rank: int) -> list[int]:
        early = []
        with open_rank(str(tmp_path), rank, world, [4], aggregation=aggregation) as session:
            calls = Collectives(session)
            for call in range(2):
                data = mine(rank, count, call)
                one = np.ones(1, np.float32)
                calls.all_reduce(one.ctypes.data, one.nbytes, "f32").wait()  # all are here
                before = session.counters()["bytes_sent"]
                if rank == late:
                    measured.wait(60)
                pending = calls.all_reduce(data.ctypes.data, data.nbytes, "f32")
                if rank != late:
                    time.sleep(0.3)
                    early.append(session.counters()["bytes_sent"] - before)
                    measured.wait(60)
                assert pending.wait()
                np.testing.assert_allclose(data, sums[call], rtol=1e-5, atol=1e-5)
        return early

    early = [nbytes for found in values(world, body) for nbytes in found]
    # What begins at the other early rank is sent on, too; without a limit it would be a third of the tensor or more.
    assert all(nbytes < 2.2 * AHEAD for nbytes in early), early
    assert any(early), "nobody sent anything before the last had come"


def test_a_call_that_would_fit_does_not_pass_one_that_waits_for_room(tmp_path: Path) -> None:
    """Rank 1 waits for every call before it makes the next: what passed the second would wait for it forever."""
    sizes = [750_000, 1_125_000, 742_500]  # a third begins with each rank: the first and the last fit together

    def body(rank: int) -> None:
        with open_rank(str(tmp_path), rank, 3, [4], aggregation="ring") as session:
            calls = Collectives(session, chunk_bytes=1_500_000)
            data = [np.full(count, 1.0 + rank, np.float32) for count in sizes]
            pending = []
            if rank == 1:
                time.sleep(0.2)  # the others have made all three
            for numbers in data:
                pending.append(calls.all_reduce(numbers.ctypes.data, numbers.nbytes, "f32"))
                if rank == 1:
                    assert pending[-1].wait(10), f"call {len(pending)} hangs"
            assert all(call.wait(10) for call in pending)
            assert all((numbers == 6.0).all() for numbers in data)

    values(3, body)


def test_an_urgent_call_does_not_wait_for_a_large_one_that_is_held_back(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with open_rank(str(tmp_path), rank, 3, [4], aggregation="ring") as session:
            calls = Collectives(session)
            large, small = np.zeros(6_000_000, np.float32), np.zeros(6000, np.float32)

            def reduce(data: Any, priority: int) -> Any:
                return calls.all_reduce(data.ctypes.data, data.nbytes, "f32", priority=priority)

            for _ in range(IN_FLIGHT):  # all channels are opened, in the same order everywhere
                assert reduce(large, 5).wait()
                assert reduce(small, -1).wait()
            large[:] = small[:] = 1.0
            if rank != 1:
                slow = reduce(large, 5)
                time.sleep(0.2)
            assert reduce(small, -1).wait(10)
            if rank == 1:  # it comes to the large one only now
                slow = reduce(large, 5)
            assert slow.wait()
            assert small[0] == large[-1] == 3.0

    values(3, body)


@pytest.mark.parametrize("aggregation", PATTERNS)
def test_broadcast_gives_everyone_the_roots_bytes(aggregation: str, tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with open_rank(str(tmp_path), rank, 3, [4], aggregation=aggregation) as session:
            calls = Collectives(session, chunk_bytes=4096)
            for root in (2, 0, 1, 1):
                data = mine(rank, 10_001, root)
                assert calls.broadcast(data.ctypes.data, data.nbytes, "f32", root=root).wait()
                assert np.array_equal(data, mine(root, 10_001, root))

    values(3, body)


def test_bytes_that_are_no_numbers_arrive_as_they_were(tmp_path: Path) -> None:
    # Small integers are subnormal as f32, and 0x7F800001 a signalling NaN that any arithmetic would change.
    bits = np.array([0, 1, 2, 1 << 22, 0x7F800001, 0x80000001], dtype=np.uint32)

    def body(rank: int) -> bool:
        with open_rank(str(tmp_path), rank, 3, [4], aggregation="ring") as session:
            data = bits.copy() if rank == 1 else np.zeros_like(bits)
            assert Collectives(session).broadcast(data.ctypes.data, data.nbytes, "f32", root=1).wait()
            return bool((data == bits).all())

    assert all(values(3, body))


@pytest.mark.parametrize("aggregation", ["shuffle", "ring"])
def test_reduce_scatter_then_all_gather_is_an_all_reduce(aggregation: str, tmp_path: Path) -> None:
    world, piece = 3, 7001

    def body(rank: int) -> None:
        with open_rank(str(tmp_path), rank, world, [4], aggregation=aggregation) as session:
            calls = Collectives(session, chunk_bytes=8192)
            for call in range(3):
                data = mine(rank, world * piece, call)
                kept = data.copy()
                pieces = [data[k * piece :].ctypes.data for k in range(world)]
                assert calls.reduce_scatter(pieces, piece * 4, "f32").wait()
                true = np.sum([mine(r, world * piece, call) for r in range(world)], axis=0)
                own = slice(rank * piece, (rank + 1) * piece)
                np.testing.assert_allclose(data[own], true[own], rtol=1e-5, atol=1e-5)
                others = np.ones(len(data), dtype=bool)
                others[own] = False
                assert np.array_equal(data[others], kept[others]), "only the own piece may change"
                assert calls.all_gather(pieces, piece * 4, "f32").wait()
                np.testing.assert_allclose(data, true, rtol=1e-5, atol=1e-5)

    values(world, body)


def test_sizes_never_seen_again_take_no_memory(tmp_path: Path) -> None:
    """Rounds of new sizes on a job that keeps two kinds: the memory of the first rounds serves the later ones."""

    def body(rank: int) -> int:
        with open_rank(str(tmp_path), rank, 2, [4]) as session:
            calls = Collectives(session, kept_kinds=2)

            def one(count: int) -> None:
                data = np.full(count, 1.0 + rank, dtype=np.float32)
                pieces = [data.ctypes.data, data[count // 2 :].ctypes.data]
                assert calls.all_reduce(data.ctypes.data, data.nbytes, "f32").wait()
                assert (data == 3.0).all()
                assert calls.reduce_scatter(pieces, count // 2 * 4, "f32").wait()
                assert data[rank * (count // 2)] == 6.0

            slow = np.full(7, 1.0 + rank, dtype=np.float32)
            kept = calls.all_reduce(slow.ctypes.data, slow.nbytes, "f32")  # its kind is closed before it is waited for
            for count in range(1_000_000, 1_000_024, 2):
                one(count)
            before = resident_bytes()
            for count in range(1_000_024, 1_000_104, 2):
                one(count)
            grown = resident_bytes() - before
            assert kept.wait()
            assert (slow == 3.0).all()
            assert calls.all_reduce(slow.ctypes.data, slow.nbytes, "f32").wait()  # opened once more
            assert (slow == 6.0).all()
            return grown

    # Both ranks are in this process. Kept for good, 40 sizes would take 40 x 4 MB of sums for each of the two calls.
    assert max(values(2, body)) < 80e6


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with open_rank(str(tmp_path), rank, 3, [4], aggregation="tree") as session:
            calls = Collectives(session)
            with pytest.raises(BadInput, match="every rank is a root"):
                calls.all_gather([1, 2, 3], 4, "f32")
            with pytest.raises(BadInput, match="2 pieces for 3 ranks"):
                calls.all_gather([1, 2], 4, "f32")
            with pytest.raises(BadInput, match="cannot sum 'i64'"):
                calls.all_reduce(0, 8, "i64")

    values(3, body)
