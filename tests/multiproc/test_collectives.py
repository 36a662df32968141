"""Collectives on tensors that no plan knew beforehand, over the real engine; ranks are threads on loopback."""

from __future__ import annotations

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
