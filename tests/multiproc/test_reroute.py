"""Masters move between two rounds of a running job: the sums stay right, and bytes go where the shares say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodes import open_rank, reduce_once, values

from dovetail.engine.collectives import Collectives
from dovetail.engine.rule import Rule
from dovetail.engine.session import Options, Session
from dovetail.engine.traffic import traffic
from dovetail.errors import BadInput

SIZES = [40_000, 0, 9000, 3]
WORLD = 4
GROUPS = ((0, 2), (1, 3))
TURNS = [None, (0.0, 0.5, 0.25, 0.25), (0.7, 0.1, 0.1, 0.1), (0.25, 0.25, 0.5, 0.0), None]


def gradient(rank: int, tensor: int, iteration: int, count: int) -> Any:
    return np.random.default_rng((rank, tensor, iteration)).standard_normal(count, dtype=np.float32)


def meet(calls: Collectives) -> None:
    one = np.ones(1, dtype=np.float32)
    calls.all_reduce(one.ctypes.data, 4, "f32").wait()


def rounds(session: Session, rank: int) -> tuple[float, list[float]]:
    """The largest error of any mean, and by turn the bytes sent over what the table says."""
    calls, worst, ratios, iteration = Collectives(session), 0.0, [], 0
    for shares in TURNS:
        table = session.share_out(shares)
        meet(calls)
        session.reroute(table)
        meet(calls)
        before = session.counters()["bytes_sent"]
        for _ in range(3):
            iteration += 1
            mine = [gradient(rank, i, iteration, n) for i, n in enumerate(SIZES)]
            reduce_once(session, iteration, mine)
            for i, n in enumerate(SIZES):
                if n:
                    true = np.mean([gradient(r, i, iteration, n) for r in range(WORLD)], axis=0)
                    worst = max(worst, float(np.abs(mine[i] - true).max()))
        meet(calls)
        ratios.append((session.counters()["bytes_sent"] - before) / (3 * float(traffic(table)[rank].sum())))
    return worst, ratios


@pytest.mark.parametrize("aggregation", ["shuffle", "two-level"])
def test_sums_are_right_and_bytes_follow_the_shares(aggregation: str, tmp_path: Path) -> None:
    options = Options(patience=20, groups=GROUPS if aggregation == "two-level" else None, every_pair=True)

    def body(rank: int) -> tuple[float, list[float]]:
        with open_rank(str(tmp_path), rank, WORLD, SIZES, aggregation=aggregation, options=options) as session:
            return rounds(session, rank)

    for worst, ratios in values(WORLD, body):
        assert worst < 1e-5
        assert ratios == pytest.approx([1.0] * len(TURNS), rel=0.03)  # headers, and the ranks' meetings


def test_paths_tell_what_the_kernel_counts(tmp_path: Path) -> None:
    def body(rank: int) -> list[int]:
        with open_rank(str(tmp_path), rank, 2, SIZES) as session:
            for iteration in range(1, 5):
                reduce_once(session, iteration, [gradient(rank, i, iteration, n) for i, n in enumerate(SIZES)])
            assert all(path.rtt > 0 and path.busy >= 0 and path.peer == 1 - rank for path in session.paths())
            return [path.acked for path in session.paths()]

    for acked in values(2, body):
        assert sum(acked) > 0.5 * 4 * 4 * sum(SIZES) * 0.9  # half of it each way, less what is still on its way


def test_a_rank_that_masters_everything_and_one_that_masters_nothing(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        options = Options(patience=20, shares=(1.0, 0.0, 0.0))
        with open_rank(str(tmp_path), rank, 3, SIZES, options=options) as session:
            mine = [gradient(rank, i, 1, n) for i, n in enumerate(SIZES)]
            reduce_once(session, 1, mine)
            return mine[0], traffic(session.table)

    (first, sent), *others = values(3, body)
    assert all(np.array_equal(first, other) for other, _ in others)
    total = 4 * sum(SIZES)
    assert sent.tolist() == [[0, total, total], [total, 0, 0], [total, 0, 0]]


def test_what_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="shuffle and two-level, not aggregation 'ring'"):
        open_rank(str(tmp_path), 0, 1, [100], aggregation="ring", options=Options(shares=(1.0,)))
    with pytest.raises(BadInput, match="do not fit 1 ranks"):
        open_rank(str(tmp_path), 0, 1, [100], options=Options(shares=(0.5, 0.5)))
    updating = open_rank(str(tmp_path), 0, 1, [100], rule=Rule(kind="sgd"))
    with updating as session, pytest.raises(RuntimeError, match="where their state is"):
        session.reroute(session.share_out(None))
