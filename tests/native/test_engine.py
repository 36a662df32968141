"""The native engine runs any step list: every pattern, any number of ranks, any size, in every mode."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from cluster import WAIT, InProcessCluster

from dovetail import _native
from dovetail.engine.table import TensorSpec
from dovetail.plan.schedule import FORWARD, PULL, PUSH, REDUCE, Plan, Transfer
from dovetail.trace.graph import Param

SIZES = [1, 3, 0, 1000, 70_001]  # elements: smaller than the rank count, empty, and many chunks


def specs(sizes: list[int], dtype: str = "f32", itemsize: int = 4) -> list[TensorSpec]:
    return [TensorSpec(f"t{i}", n * itemsize, dtype) for i, n in enumerate(sizes)]


def plan_for(tensors: list[TensorSpec], *, aggregation: str, kinds: tuple[str, ...] = (REDUCE,), **options) -> Plan:
    transfers = tuple(
        Transfer(kind, ((t.name, 0, t.nbytes),), priority=i, window=options.get(kind, "backward"))
        for kind in kinds
        for i, t in enumerate(tensors)
    )
    params = tuple(Param(t.name, t.nbytes) for t in tensors)
    return Plan(policy="test", params=params, transfers=transfers, aggregation=aggregation, chunk_bytes=8192)


def random_gradients(sizes: list[int], workers: int, seed: int, dtype=np.float32) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(n).astype(dtype) for n in sizes] for _ in range(workers)]


def check_rounds(cluster: InProcessCluster, sizes: list[int], *, rounds: int = 3, exact: bool = False) -> None:
    for iteration in range(1, rounds + 1):
        gradients = random_gradients(sizes, cluster.workers, seed=iteration)
        expected = [
            np.sum([g[t].astype(np.float64) for g in gradients], axis=0) / cluster.workers for t in range(len(sizes))
        ]
        cluster.reduce(gradients, iteration)
        for own in gradients:
            for tensor, values in enumerate(own):
                np.testing.assert_allclose(values, expected[tensor], rtol=2e-5, atol=1e-6)
                assert np.array_equal(values, gradients[0][tensor]), "ranks differ in their bits"


FLAT = ["shuffle", "ring", "halving-doubling", "tree", "bcube"]


@pytest.mark.parametrize("aggregation", FLAT)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8])
def test_pattern_gives_every_rank_the_mean(aggregation: str, workers: int) -> None:
    tensors = specs(SIZES)
    with InProcessCluster(plan_for(tensors, aggregation=aggregation), tensors, workers=workers) as cluster:
        check_rounds(cluster, SIZES)


@pytest.mark.parametrize(("workers", "hubs"), [(1, 1), (2, 1), (4, 1), (3, 2)])
@pytest.mark.parametrize(("lanes", "threads"), [(1, 1), (3, 2)])
def test_dedicated_hubs_give_every_rank_the_mean(workers: int, hubs: int, lanes: int, threads: int) -> None:
    tensors = specs(SIZES)
    plan = plan_for(tensors, aggregation="hub")
    with InProcessCluster(plan, tensors, workers=workers, hubs=hubs, lanes=lanes, threads=threads) as cluster:
        check_rounds(cluster, SIZES)


@pytest.mark.parametrize(("aggregation", "hubs"), [("two-level", 0), ("rack-hubs", 2)])
def test_racked_patterns_give_every_rank_the_mean(aggregation: str, hubs: int) -> None:
    tensors = specs(SIZES)
    plan = plan_for(tensors, aggregation=aggregation)
    groups = ((0, 2, 4), (1, 3))
    with InProcessCluster(plan, tensors, workers=5, hubs=hubs, groups=groups) as cluster:
        check_rounds(cluster, SIZES)


@pytest.mark.parametrize(("aggregation", "hubs"), [("hub", 1), ("shuffle", 0)])
@pytest.mark.parametrize("window", ["backward", FORWARD])
def test_separate_pulls_are_answered(aggregation: str, hubs: int, window: str) -> None:
    tensors = specs(SIZES)
    plan = plan_for(tensors, aggregation=aggregation, kinds=(PUSH, PULL), pull=window)
    with InProcessCluster(plan, tensors, workers=3, hubs=hubs) as cluster:
        check_rounds(cluster, SIZES)


@pytest.mark.parametrize("aggregation", FLAT)
def test_split_reduce_keeps_results_until_the_backward_pass_is_over(aggregation: str) -> None:
    tensors = specs([500])
    plan = plan_for(tensors, aggregation=aggregation, kinds=(PUSH, PULL), pull=FORWARD)
    with InProcessCluster(plan, tensors, workers=3) as cluster:
        gradients = random_gradients([500], 3, seed=1)
        for rank, own in enumerate(gradients):
            cluster.jobs[rank].submit(0, 1, own[0].ctypes.data)
        assert not cluster.jobs[0].wait([0], 1, 0.3), "a result arrived before its window opened"
        for job in cluster.jobs:
            job.backward_done(1)
        assert all(job.wait([0], 1, WAIT) for job in cluster.jobs)


@pytest.mark.parametrize(("dtype", "numpy_type", "itemsize"), [("f64", np.float64, 8), ("f16", np.float16, 2)])
@pytest.mark.parametrize("aggregation", ["shuffle", "ring"])
def test_other_types(dtype: str, numpy_type: type, itemsize: int, aggregation: str) -> None:
    sizes = [5, 10_000]
    tensors = specs(sizes, dtype, itemsize)
    with InProcessCluster(plan_for(tensors, aggregation=aggregation), tensors, workers=3) as cluster:
        gradients = random_gradients(sizes, 3, seed=4, dtype=numpy_type)
        expected = [np.sum([g[t].astype(np.float64) for g in gradients], axis=0) / 3 for t in range(2)]
        cluster.reduce(gradients, 1)
        for t in range(2):
            np.testing.assert_allclose(gradients[1][t], expected[t], rtol=2e-3 if itemsize == 2 else 1e-12, atol=2e-3)


@pytest.mark.parametrize("aggregation", ["shuffle", "ring", "tree"])
def test_absent_gradients_count_as_zero_and_absent_everywhere_is_said(aggregation: str) -> None:
    sizes = [100, 100, 100]
    tensors = specs(sizes)
    with InProcessCluster(plan_for(tensors, aggregation=aggregation), tensors, workers=3) as cluster:
        gradients: list[list[np.ndarray | None]] = [list(g) for g in random_gradients(sizes, 3, seed=5)]
        room = np.zeros(100, np.float32)
        expected = (gradients[0][1] + gradients[2][1]) / 3
        gradients[1][1] = None  # absent on one rank
        cluster.jobs[1].bind(1, room.ctypes.data)
        for own in gradients:
            own[2] = None  # absent on all
        cluster.reduce(gradients, 1)
        np.testing.assert_allclose(gradients[0][1], expected, rtol=1e-5)
        np.testing.assert_allclose(room, expected, rtol=1e-5)
        assert [job.absent(2) for job in cluster.jobs] == [True] * 3
        assert [job.absent(1) for job in cluster.jobs] == [False] * 3


@pytest.mark.parametrize("aggregation", ["shuffle", "hub"])
def test_deterministic_mode_adds_in_rank_order(aggregation: str) -> None:
    sizes = [50_000]
    tensors = specs(sizes)
    hubs = 1 if aggregation == "hub" else 0
    plan = plan_for(tensors, aggregation=aggregation)
    with InProcessCluster(plan, tensors, workers=4, hubs=hubs, deterministic=True) as cluster:
        for iteration, order in enumerate([(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)], start=1):
            gradients = random_gradients(sizes, 4, seed=6)
            g = [own[0].copy() for own in gradients]
            in_rank_order = ((g[0] + g[1]) + g[2] + g[3]) * np.float32(0.25)
            for rank in order:
                cluster.jobs[rank].submit(0, iteration, gradients[rank][0].ctypes.data)
                time.sleep(0.02)
            assert all(cluster.jobs[r].wait([0], iteration, WAIT) for r in range(4))
            assert np.array_equal(gradients[0][0], in_rank_order)


def test_update_runs_at_the_root_and_its_state_can_be_read_and_set() -> None:
    tensors = specs([9000])
    plan = plan_for(tensors, aggregation="hub")
    rng = np.random.default_rng(7)
    start = rng.standard_normal(9000).astype(np.float32)
    with InProcessCluster(plan, tensors, workers=2, hubs=1, rule=1) as cluster:
        values = [np.zeros(9000, np.float32) for _ in range(2)]
        cluster.jobs[0].put(0, 0, start.ctypes.data, 0)
        for rank in range(2):
            cluster.jobs[rank].bind(0, values[rank].ctypes.data)
        expected, momentum = start.copy(), None
        for iteration in range(1, 4):
            gradients = random_gradients([9000], 2, seed=iteration)
            mean = (gradients[0][0] + gradients[1][0]) * np.float32(0.5)
            momentum = mean if momentum is None else momentum * np.float32(0.9) + mean
            expected = expected - np.float32(0.1) * momentum
            for job in cluster.jobs[:2]:
                job.hyper(iteration, 0, [0.1, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0])
            cluster.reduce(gradients, iteration)
            np.testing.assert_allclose(values[0], expected, rtol=1e-5, atol=1e-6)
            assert np.array_equal(values[0], values[1])
        read = np.zeros(9000, np.float32)
        assert cluster.jobs[1].wait_get(cluster.jobs[1].get(0, 1, read.ctypes.data, 3), WAIT) == 1
        np.testing.assert_allclose(read, momentum, rtol=1e-5, atol=1e-6)
        assert cluster.jobs[1].get_step(0) == 3


def test_results_wait_for_release_before_they_touch_bound_memory() -> None:
    tensors = specs([20_000])
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2, rule=1) as cluster:
        values = [np.zeros(20_000, np.float32) for _ in range(2)]
        gradients = random_gradients([20_000], 2, seed=8)
        for rank in range(2):
            cluster.jobs[rank].put(0, 0, values[0].ctypes.data, 0)
            cluster.jobs[rank].bind(0, values[rank].ctypes.data)
            cluster.jobs[rank].hyper(1, 0, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        for rank in range(2):
            cluster.jobs[rank].submit(0, 1, gradients[rank][0].ctypes.data)
        cluster.jobs[0].release(1)
        assert cluster.jobs[0].wait([0], 1, WAIT)
        assert not cluster.jobs[1].wait([0], 1, 0.2)
        assert not values[1].any(), "memory was written before release()"
        cluster.jobs[1].release(1)
        assert cluster.jobs[1].wait([0], 1, WAIT)
        assert np.array_equal(values[0], values[1])
        assert values[1].any()


def test_a_peer_with_other_hyperparameters_is_named() -> None:
    tensors = specs([10])
    with InProcessCluster(plan_for(tensors, aggregation="hub"), tensors, workers=2, hubs=1, rule=1) as cluster:
        cluster.jobs[0].hyper(1, 0, [0.1] + [0.0] * 6)
        time.sleep(0.1)
        cluster.jobs[1].hyper(1, 0, [0.2] + [0.0] * 6)
        with pytest.raises(_native.EngineError, match=r"lr 0\.2 against 0\.1") as caught:
            cluster.jobs[0].wait([0], 1, WAIT)
        assert caught.value.args[0] == 1


def test_submitting_ahead_is_refused() -> None:
    tensors = specs([10])
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2) as cluster:
        values = np.zeros(10, np.float32)
        with pytest.raises(RuntimeError, match="iteration 2 but has completed 0"):
            cluster.jobs[0].submit(0, 2, values.ctypes.data)


def test_a_rank_that_leaves_is_named_by_all_others() -> None:
    tensors = specs([10])
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=3) as cluster:
        check_rounds(cluster, [10], rounds=1)
        cluster.jobs[2].close()
        kept = [np.ones(10, np.float32) for _ in range(2)]
        for rank in (0, 1):
            cluster.jobs[rank].submit(0, 2, kept[rank].ctypes.data)
        for rank in (0, 1):
            with pytest.raises(_native.EngineError) as caught:
                cluster.jobs[rank].wait([0], 2, WAIT)
            assert caught.value.args == (2, "has left the job", 2)


def test_leaving_after_the_last_iteration_disturbs_nobody() -> None:
    tensors = specs([200_000])
    with InProcessCluster(plan_for(tensors, aggregation="ring"), tensors, workers=3) as cluster:
        gradients = random_gradients([200_000], 3, seed=9)
        for rank in range(3):
            cluster.jobs[rank].submit(0, 1, gradients[rank][0].ctypes.data)
        for rank in range(3):
            assert cluster.jobs[rank].wait([0], 1, WAIT)
            cluster.jobs[rank].close()
        assert [job.failure() for job in cluster.jobs] == [None] * 3


def test_bytes_that_are_not_frames_end_the_job_with_the_culprits_name() -> None:
    import os

    tensors = specs([10])
    cluster = InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2)
    view = cluster.table.for_node(0)
    job = cluster.jobs[0]
    job.table(view.programs, view.tensors, view.chunks, view.transfers, view.windows)
    from cluster import tcp_pair

    near, far = tcp_pair()
    job.link(1, 0, near)
    job.start()
    os.write(far, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
    with pytest.raises(_native.EngineError, match=r"not dovetail.s|does not fit") as caught:
        job.wait([0], 1, WAIT)
    assert caught.value.args[0] == 1
    os.close(far)
    job.close()


def test_own_rate_limit_holds() -> None:
    sizes = [250_000]  # 1 MB at 4 MB/s: a quarter of a second each way, both ways at once
    tensors = specs(sizes)
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2, rate=4e6) as cluster:
        started = time.monotonic()
        check_rounds(cluster, sizes, rounds=2)
        assert time.monotonic() - started > 0.4, "2 MB left each rank faster than 4 MB/s allow"


def test_the_most_urgent_chunk_overtakes() -> None:
    sizes = [1024, 1_000_000]
    tensors = specs(sizes)
    with InProcessCluster(plan_for(tensors, aggregation="hub"), tensors, workers=2, hubs=1, rate=8e6) as cluster:
        gradients = random_gradients(sizes, 2, seed=10)
        for rank in range(2):
            cluster.jobs[rank].submit(1, 1, gradients[rank][1].ctypes.data)
        time.sleep(0.05)
        for rank in range(2):
            cluster.jobs[rank].submit(0, 1, gradients[rank][0].ctypes.data)
        assert cluster.jobs[0].wait([0], 1, WAIT)
        assert cluster.jobs[0].completed(1) == 0, "the large transfer was not overtaken"
        assert cluster.jobs[0].wait([1], 1, WAIT)


def test_a_running_job_takes_new_tensors_even_when_a_peer_is_ahead() -> None:
    tensors = specs([10])
    plan = plan_for(tensors, aggregation="shuffle")
    with InProcessCluster(plan, tensors, workers=3) as cluster:
        check_rounds(cluster, [10], rounds=1)
        values = [np.full(5000, rank + 1.0, np.float32) for rank in range(3)]
        for rank, job in enumerate(cluster.jobs):  # rank 0 extends and submits before the others know the tensor
            view = cluster.table.for_node(rank)
            chunks = np.array([[1, c * 8000, 4000 if c == 2 else 8000, c, 0, 0, 0, 1, 0] for c in range(3)], np.int64)
            job.extend([], [(20_000, 0, 0)], chunks, [[1]], [0], 1)
            assert len(view.programs) == 3
            job.submit(1, 1, values[rank].ctypes.data)
            time.sleep(0.05)
        for rank, job in enumerate(cluster.jobs):
            assert job.wait([1], 1, WAIT)
            assert (values[rank] == 6.0).all(), "a divisor of 1 gives the sum"
        gradients = random_gradients([10], 3, seed=2)
        for rank, job in enumerate(cluster.jobs):
            job.submit(0, 2, gradients[rank][0].ctypes.data)
        assert all(job.wait([0], 2, WAIT) for job in cluster.jobs), "the old tensors still travel"


def test_ranks_that_begin_together_send_to_different_ones_first() -> None:
    sizes, workers = [400_000], 4
    tensors = specs(sizes)
    plan = replace(plan_for(tensors, aggregation="shuffle"), chunk_bytes=60_000)
    with InProcessCluster(plan, tensors, workers=workers) as cluster:
        cluster.reduce(random_gradients(sizes, workers, seed=1), 1)
        sent = [[e for e in job.events() if e[0] == 0] for job in cluster.jobs]
    first = [min(own, key=lambda e: e[5])[3] for own in sent]
    assert first == [(rank + 1) % workers for rank in range(workers)]
