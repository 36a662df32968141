"""Large chunks end where the root's own gradient lies: same results, whoever contributes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from cluster import WAIT, InProcessCluster

from dovetail import _native
from dovetail.engine.table import TensorSpec
from dovetail.plan.schedule import CHUNK_BYTES, PULL, PUSH, REDUCE, Plan, Transfer
from dovetail.trace.graph import Param

COUNT = 150_000  # elements: every rank is the root of some chunks, and the last chunk is smaller
TYPES = {"f32": np.float32, "f64": np.float64}


def cluster_of(workers: int, *, aggregation: str, dtype: str = "f32", **options) -> InProcessCluster:
    spec = TensorSpec("t", COUNT * np.dtype(TYPES[dtype]).itemsize, dtype)
    plan = Plan(
        policy="test",
        params=(Param("t", spec.nbytes),),
        transfers=(Transfer(REDUCE, (("t", 0, spec.nbytes),)),),
        aggregation=aggregation,
        chunk_bytes=CHUNK_BYTES,
    )
    return InProcessCluster(plan, [spec], workers=workers, **options)


def asked_for(workers: int) -> InProcessCluster:
    """A cluster in which everybody asks for results."""
    nbytes = COUNT * 4
    parts = (("t", 0, nbytes),)
    plan = Plan(
        policy="test",
        params=(Param("t", nbytes),),
        transfers=(Transfer(PUSH, parts), Transfer(PULL, parts)),
        aggregation="shuffle",
        chunk_bytes=CHUNK_BYTES,
    )
    return InProcessCluster(plan, [TensorSpec("t", nbytes)], workers=workers)


def gradients_of(workers: int, iteration: int, dtype: str = "f32") -> list[np.ndarray]:
    rng = np.random.default_rng(iteration)
    return [rng.standard_normal(COUNT).astype(TYPES[dtype]) for _ in range(workers)]


@pytest.mark.parametrize("aggregation", ["shuffle", "ring", "halving-doubling", "tree", "bcube"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_rank_gets_the_mean(aggregation: str, workers: int) -> None:
    with cluster_of(workers, aggregation=aggregation) as cluster:
        for iteration in (1, 2, 3):
            given = gradients_of(workers, iteration)
            expected = np.mean([g.astype(np.float64) for g in given], axis=0)
            cluster.reduce([[g] for g in given], iteration)
            for values in given:
                np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-6)
                assert np.array_equal(values, given[0]), "ranks differ in their bits"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("aggregation", ["shuffle", "ring"])
def test_two_ranks_have_the_bits_of_one_addition_and_one_division(aggregation: str, dtype: str) -> None:
    with cluster_of(2, aggregation=aggregation, dtype=dtype) as cluster:
        given = gradients_of(2, 1, dtype)
        expected = (given[0] + given[1]) * TYPES[dtype](0.5)
        cluster.reduce([[g] for g in given], 1)
        assert np.array_equal(given[0], expected)
        assert np.array_equal(given[1], expected)


@pytest.mark.parametrize("missing", [{1}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("aggregation", ["shuffle", "ring"])
def test_ranks_without_a_gradient_count_as_zeros(aggregation: str, missing: set[int]) -> None:
    with cluster_of(3, aggregation=aggregation) as cluster:
        for iteration in (1, 2):
            memory = gradients_of(3, iteration)
            here = [g.astype(np.float64) for rank, g in enumerate(memory) if rank not in missing]
            expected = sum(here) / 3 if here else None
            for rank in missing:
                memory[rank][:] = -1.0
                cluster.jobs[rank].bind(0, memory[rank].ctypes.data)
            cluster.reduce([[None if rank in missing else g] for rank, g in enumerate(memory)], iteration)
            assert [job.absent(0) for job in cluster.jobs] == [expected is None] * 3
            for values in memory:
                np.testing.assert_allclose(values, -1.0 if expected is None else expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["shuffle", "ring"])
def test_a_rank_that_leaves_without_its_result_keeps_nobody_waiting(aggregation: str) -> None:
    for _ in range(5):
        with cluster_of(2, aggregation=aggregation) as cluster:
            given = gradients_of(2, 1)
            for rank, own in enumerate(given):
                cluster.jobs[rank].submit(0, 1, own.ctypes.data)
            cluster.jobs[1].close()
            try:
                came = cluster.jobs[0].wait([0], 1, WAIT)
            except _native.EngineError as error:
                came = error.args == (1, "has left the job", 1)
            assert came, "neither a result nor the word that it left"


def test_who_asks_late_is_not_served_from_memory_that_was_handed_back() -> None:
    with asked_for(3) as cluster:
        for iteration in range(1, 21):
            given = gradients_of(3, iteration)
            expected = np.mean([g.astype(np.float64) for g in given], axis=0)
            results: dict[int, np.ndarray] = {}

            def train(rank: int, own: np.ndarray, results: dict[int, np.ndarray], iteration: int) -> None:
                job = cluster.jobs[rank]
                job.submit(0, iteration, own.ctypes.data)
                assert job.wait([0], iteration, WAIT)
                results[rank] = own.copy()
                own[:] = np.nan  # it is the caller's again

            threads = [
                threading.Thread(target=train, args=(rank, own, results, iteration)) for rank, own in enumerate(given)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT)
            assert sorted(results) == [0, 1, 2]
            for values in results.values():
                np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-6)
