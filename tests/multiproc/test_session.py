"""Sessions with the real engine: ranks are threads that talk over loopback."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodes import hub, open_rank, plan_for, reduce_once, specs_for, threads, values

from dovetail.engine.rule import Hyper, Rule
from dovetail.engine.session import Options, Session
from dovetail.errors import BadInput, Mismatch, Misuse, Unreachable
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, Transfer

SIZES = [1000, 0, 9000, 3]
PATTERNS = ["shuffle", "ring", "halving-doubling", "tree", "bcube", "two-level"]


def gradient(rank: int, tensor: int, iteration: int, count: int) -> Any:
    return np.random.default_rng((rank, tensor, iteration)).standard_normal(count, dtype=np.float32)


def means(rank: int, world: int, session: Session, iterations: int = 3) -> float:
    """The largest distance from the true mean over some iterations."""
    worst = 0.0
    for iteration in range(1, iterations + 1):
        mine = [gradient(rank, i, iteration, n) for i, n in enumerate(SIZES)]
        reduce_once(session, iteration, mine)
        for i, n in enumerate(SIZES):
            if n:
                true = np.mean([gradient(r, i, iteration, n) for r in range(world)], axis=0)
                worst = max(worst, float(np.abs(mine[i] - true).max()))
    return worst


@pytest.mark.parametrize("aggregation", PATTERNS)
@pytest.mark.parametrize("world", [1, 3, 4])
def test_every_pattern_gives_the_mean_to_every_rank(aggregation: str, world: int, tmp_path: Path) -> None:
    def body(rank: int) -> float:
        with open_rank(str(tmp_path), rank, world, SIZES, aggregation=aggregation) as session:
            return means(rank, world, session)

    assert all(worst < 1e-5 for worst in values(world, body))


@pytest.mark.parametrize(("aggregation", "hubs"), [("hub", 1), ("hub", 2), ("rack-hubs", 2)])
def test_dedicated_hubs_give_the_mean(aggregation: str, hubs: int, tmp_path: Path) -> None:
    with hub("--cores", "2") as one, hub() as two:
        addresses = [one.address, two.address][:hubs]

        def body(rank: int) -> float:
            with open_rank(str(tmp_path), rank, 3, SIZES, aggregation=aggregation, hubs=addresses) as session:
                return means(rank, 3, session)

        assert all(worst < 1e-5 for worst in values(3, body))


@pytest.mark.parametrize("window", [BACKWARD, FORWARD])
@pytest.mark.parametrize("aggregation", ["shuffle", "ring"])
def test_pulls_of_their_own_give_the_mean_too(aggregation: str, window: str, tmp_path: Path) -> None:
    ways = [Transfer(PUSH, ((f"p{i}", 0, 4 * n),), priority=i) for i, n in enumerate(SIZES)]
    ways.append(Transfer(PULL, tuple((f"p{i}", 0, 4 * n) for i, n in enumerate(SIZES)), window=window))

    def body(rank: int) -> float:
        with open_rank(str(tmp_path), rank, 3, SIZES, aggregation=aggregation, transfers=ways) as session:
            return means(rank, 3, session)

    assert all(worst < 1e-5 for worst in values(3, body))


def test_a_gradient_that_some_ranks_lack_counts_as_zero_and_one_that_all_lack_is_flagged(tmp_path: Path) -> None:
    def body(rank: int) -> tuple[float, bool, bool]:
        with open_rank(str(tmp_path), rank, 2, [8, 8]) as session:
            value = np.full(8, 6.0, dtype=np.float32) if rank == 0 else None
            spare = np.zeros(8, dtype=np.float32)
            session.bind(0, spare.ctypes.data)
            reduce_once(session, 1, [value, None])
            return float((value if value is not None else spare)[0]), session.absent(0), session.absent(1)

    assert values(2, body) == [(3.0, False, True)] * 2


@pytest.mark.parametrize("aggregation", ["shuffle", "hub"])
def test_sgd_with_momentum_runs_at_the_aggregator(aggregation: str, tmp_path: Path) -> None:
    count = 5000
    parting = threading.Barrier(2)  # either rank masters a part of what the other one reads last

    def body(rank: int) -> tuple[Any, Any, int]:
        rule = Rule(kind="sgd")
        with open_rank(
            str(tmp_path), rank, 2, [count], aggregation=aggregation, hubs=[service.address], rule=rule
        ) as session:
            values = np.full(count, 10.0, dtype=np.float32)
            session.bind(0, values.ctypes.data)
            if rank == 0:
                session.put(0, 0, values.ctypes.data)
            for iteration in (1, 2):
                session.begin(iteration, [Hyper(lr=0.5, momentum=0.9)])
                session.release(iteration)
                grad = np.full(count, 1.0 + rank, dtype=np.float32)
                session.submit(0, iteration, grad.ctypes.data)
                session.backward_done(iteration)
                assert session.wait([0], iteration, timeout=20)
            momentum = np.zeros(count, dtype=np.float32)
            assert session.get(0, 1, momentum.ctypes.data, version=2)
            parting.wait(timeout=20)
            return values.copy(), momentum, session.step_of(0)

    with hub() as service:
        for result, momentum, step in values(2, body):
            # mean gradient 1.5: momentum 1.5, then 1.5 * 0.9 + 1.5
            assert np.allclose(momentum, 2.85)
            assert np.allclose(result, 10 - 0.5 * 1.5 - 0.5 * 2.85)
            assert step == 2


def test_different_models_raise_mismatch_on_every_rank(tmp_path: Path) -> None:
    results = threads(3, lambda rank: open_rank(str(tmp_path), rank, 3, [100, 20 + (rank == 1)]))
    assert [type(e) for e in results] == [Mismatch] * 3
    assert all("parameter 1 is 'p1' (80 bytes of f32) on rank 0 and 'p1' (84 bytes" in str(e) for e in results)


def test_different_settings_raise_mismatch_on_every_rank(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        open_rank(str(tmp_path), rank, 2, [100], options=Options(lanes=1 + rank, patience=20))

    results = threads(2, body)
    assert [type(e) for e in results] == [Mismatch] * 2
    assert "'lanes': 1" in str(results[1])


def test_a_rank_that_never_comes_is_named_in_time(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"rank 1 \(of 2; 1 came\)"):
        open_rank(str(tmp_path), 0, 2, [100], options=Options(patience=0.5))
    assert time.monotonic() - begun < 5


def test_an_optimizer_cannot_run_where_sums_pass_through(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'ring' cannot run the optimizer"):
        open_rank(str(tmp_path), 0, 1, [100], aggregation="ring", rule=Rule(kind="sgd"))


def test_spans_and_counters_tell_what_travelled(tmp_path: Path) -> None:
    def body(rank: int) -> tuple[Any, Any]:
        begun = time.monotonic()
        with open_rank(str(tmp_path), rank, 2, [4000], options=Options(trace=True, patience=20)) as session:
            reduce_once(session, 1, [np.ones(4000, dtype=np.float32)])
            time.sleep(0.2)  # the last events are handed over at the end of the loop's turn
            return session.spans(origin=begun), session.counters()

    spans, counters = values(2, body)[0]
    sent = [s for s in spans if s.lane == "send"]
    assert {s.node for s in spans} == {"worker 0"}
    assert {s.peer for s in sent} == {"worker 1"}
    assert sum(s.nbytes for s in sent) == 16000
    assert all(0 <= s.start <= s.end < 20 for s in spans)
    assert {s.name for s in spans} == {"p0"}
    assert counters["bytes_sent"] >= 16000


def test_iterations_count_one_by_one(tmp_path: Path) -> None:
    with open_rank(str(tmp_path), 0, 1, [100]) as session, pytest.raises(Misuse, match="iteration 3 begins after 0"):
        session.begin(3)


def test_deterministic_mode_gives_the_same_bits_twice(tmp_path: Path) -> None:
    def run(name: str) -> list[Any]:
        (tmp_path / name).mkdir()

        def body(rank: int) -> Any:
            options = Options(deterministic=True, patience=20)
            with open_rank(str(tmp_path / name), rank, 4, [20000], options=options) as session:
                mine = gradient(rank, 0, 1, 20000)
                time.sleep(0.01 * ((rank + len(name)) % 4))  # another order of arrival in each run
                reduce_once(session, 1, [mine])
                return mine.tobytes()

        return values(4, body)

    first, second = run("a"), run("bb")
    assert len(set(first + second)) == 1


def test_two_sessions_in_one_store_and_torchs_own_store(tmp_path: Path) -> None:
    torch_dist = pytest.importorskip("torch.distributed")
    store = torch_dist.PrefixStore("x", torch_dist.HashStore())

    def body(rank: int) -> list[float]:
        found = []
        for _ in range(2):
            with Session.open(
                store=store, rank=rank, world=2, plan=plan_for(SIZES), tensors=specs_for(SIZES)
            ) as session:
                found.append(means(rank, 2, session, 1))
        return found

    assert all(max(worst) < 1e-5 for worst in values(2, body))
