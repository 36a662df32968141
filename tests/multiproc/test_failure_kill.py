"""Kill and bound: whoever dies, the survivors know in seconds who it was, where, and in which step."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import ranks, reach
from nodes import hub, open_rank, reduce_once

from dovetail.engine.session import Options
from dovetail.errors import PeerLost

SIZES = [40_000, 100]
LIMIT = 5.0  # seconds in which every survivor must know


def push_forever(rank: int, size: int, folder: str, more: dict[str, Any]) -> None:
    """Reduce until something happens; says when it has begun."""
    forks = more.pop("forks", False)
    options = Options(patience=30, timeout=more.pop("timeout", 60.0))
    with open_rank(folder, rank, size, SIZES, options=options, **more) as session:
        for iteration in range(1, 10**9):
            reduce_once(session, iteration, [np.full(n, 1.0 + rank, dtype=np.float32) for n in SIZES])
            if iteration == 3:
                if forks and os.fork() == 0:  # as a data loader's worker does: it holds copies of our sockets
                    time.sleep(20)
                    os._exit(0)
                reach("pushing")
            time.sleep(0.002)


def give_up(rank: int, size: int, folder: str) -> None:
    """Rank 1 raises an error of its own in step 2; the others wait for its gradient."""
    with open_rank(folder, rank, size, SIZES) as session:
        reduce_once(session, 1, [np.ones(n, dtype=np.float32) for n in SIZES])
        if rank == 1:
            raise RuntimeError("the data set is empty")
        reduce_once(session, 2, [np.ones(n, dtype=np.float32) for n in SIZES])


def count_to(rank: int, size: int, folder: str, more: dict[str, Any], steps: int) -> int:
    with open_rank(folder, rank, size, SIZES, **more) as session:
        for iteration in range(1, steps + 1):
            reduce_once(session, iteration, [np.ones(n, dtype=np.float32) for n in SIZES])
            if iteration == 3:
                reach("counting")
            time.sleep(0.02)
    return steps


def assert_lost(messages: dict[int, str], who: str) -> None:
    for message in messages.values():
        assert re.match(rf"{who} at 127\.0\.0\.1:\d+: .+ in step \d+", message), message


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("aggregation", ["shuffle", "ring"])
def test_a_killed_rank_is_named_by_every_survivor(aggregation: str, victim: int, tmp_path: Path) -> None:
    with ranks(4, push_forever, args=(str(tmp_path), {"aggregation": aggregation})) as group:
        group.wait_for("pushing", within=30)
        group.kill(victim)  # in a ring, one of the others has no connection to it
        assert group.errors(within=LIMIT) == {r: PeerLost for r in range(4) if r != victim}
        assert_lost(group.messages(), f"rank {victim}")


@pytest.mark.parametrize("seed", range(20))
def test_kills_at_random_moments_with_a_hub(seed: int, tmp_path: Path) -> None:
    """Worker or hub, at any moment after the start; the hub, if it lives, serves the next job under the same name."""
    chance = random.Random(seed)
    with hub() as service:
        more = {"aggregation": "hub", "hubs": [service.address]}
        with ranks(2, push_forever, args=(str(tmp_path), more)) as group:
            group.wait_for("pushing", within=30)
            time.sleep(chance.random() * 0.2)
            if seed % 2:
                service.kill()
                assert group.errors(within=LIMIT) == {0: PeerLost, 1: PeerLost}
                assert_lost(group.messages(), "hub 0")
                return
            group.kill(1)
            assert group.errors(within=LIMIT) == {0: PeerLost}
            assert_lost(group.messages(), "rank 1")
        again = tmp_path / "again"
        again.mkdir()
        with ranks(2, count_to, args=(str(again), more, 5)) as group:
            assert group.results(30) == [5, 5]


def test_another_job_on_the_hub_does_not_notice(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with hub() as service:
        more: dict[str, Any] = {"aggregation": "hub", "hubs": [service.address]}
        with (
            ranks(2, push_forever, args=(str(tmp_path / "a"), {**more, "namespace": "a"})) as dying,
            ranks(2, count_to, args=(str(tmp_path / "b"), {**more, "namespace": "b"}, 60)) as living,
        ):
            dying.wait_for("pushing", within=30)
            living.wait_for("counting", within=30)
            dying.kill(0)
            assert dying.errors(within=LIMIT) == {1: PeerLost}
            assert living.results(30) == [60, 60]


@pytest.mark.parametrize("aggregation", ["shuffle", "hub"])
def test_one_that_falls_silent_is_lost_after_the_timeout(aggregation: str, tmp_path: Path) -> None:
    with hub() as service:
        more = {"aggregation": aggregation, "hubs": [service.address], "timeout": 2.0}
        with ranks(2, push_forever, args=(str(tmp_path), more)) as group:
            group.wait_for("pushing", within=30)
            group.kill(1, signal.SIGSTOP)
            assert group.errors(within=LIMIT) == {0: PeerLost}
            assert "rank 1 at" in group.messages()[0]
            assert "silent for" in group.messages()[0]


def test_a_killed_rank_whose_children_hold_its_sockets_is_noticed_too(tmp_path: Path) -> None:
    more = {"forks": True, "timeout": Options().timeout}
    with ranks(2, push_forever, args=(str(tmp_path), more)) as group:
        group.wait_for("pushing", within=30)
        os.kill(group.processes[0].pid, signal.SIGKILL)  # the rank alone, not its children
        group.killed.add(0)
        assert group.errors(within=LIMIT) == {1: PeerLost}
        os.killpg(group.processes[0].pid, signal.SIGKILL)


def test_a_rank_that_raises_tells_the_others_why(tmp_path: Path) -> None:
    with ranks(3, give_up, args=(str(tmp_path),)) as group:
        assert group.errors(within=20) == {0: PeerLost, 1: RuntimeError, 2: PeerLost}
        messages = group.messages()
        assert all("RuntimeError: the data set is empty" in messages[r] and "rank 1 at" in messages[r] for r in (0, 2))


def test_ctrl_c_ends_a_rank_and_the_others_know(tmp_path: Path) -> None:
    with ranks(2, push_forever, args=(str(tmp_path), {})) as group:
        group.wait_for("pushing", within=30)
        group.kill(0, signal.SIGINT)
        assert group.errors(within=LIMIT) == {1: PeerLost}
        assert "rank 0 at" in group.messages()[1]
        assert group.processes[0].wait(5) == 1
