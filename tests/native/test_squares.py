"""The norm before the results: what each node completes, squared, adds up to the square of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from cluster import WAIT, InProcessCluster
from test_engine import FLAT, SIZES, plan_for, random_gradients, specs

from dovetail import _native


@pytest.mark.parametrize("aggregation", FLAT)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_ranks_squares_make_up_the_norm(aggregation: str, workers: int) -> None:
    tensors = specs(SIZES)
    with InProcessCluster(plan_for(tensors, aggregation=aggregation), tensors, workers=workers, threads=2) as cluster:
        for iteration in range(1, 6):
            for job in cluster.jobs:
                job.watch_squares(iteration)
            gradients: list[list[np.ndarray | None]] = [
                list(own) for own in random_gradients(SIZES, workers, seed=iteration)
            ]
            if iteration == 3:
                for own in gradients:
                    own[3] = None  # nobody has it
            means = [
                np.mean([own[t].astype(np.float64) for own in gradients], axis=0)
                for t in range(len(SIZES))
                if gradients[0][t] is not None
            ]
            cluster.reduce(gradients, iteration)
            found = sum(job.squares(iteration, WAIT) for job in cluster.jobs)
            assert found == pytest.approx(sum(float((m**2).sum()) for m in means), rel=1e-5)


def test_squares_do_not_wait_for_results() -> None:
    """A rank whose own sums are complete has them, whether or not another has released or waited."""
    tensors = specs([4096])
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2, rate=20_000.0) as cluster:
        gradients = random_gradients([4096], 2, seed=1)
        expected = float((np.mean([own[0] for own in gradients], axis=0).astype(np.float64) ** 2).sum())
        for rank, job in enumerate(cluster.jobs):
            job.watch_squares(1)
            job.submit(0, 1, gradients[rank][0].ctypes.data)
            job.backward_done(1)
            job.release(1)
        total = sum(job.squares(1, WAIT) for job in cluster.jobs)
        assert any(job.completed(0) == 0 for job in cluster.jobs), "the results were there before their squares"
        assert total == pytest.approx(expected, rel=1e-5)
        assert all(job.wait([0], 1, WAIT) for job in cluster.jobs)


def test_squares_must_be_asked_for() -> None:
    tensors = specs([4])
    with (
        InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=1) as cluster,
        pytest.raises(RuntimeError, match="not asked for"),
    ):
        cluster.jobs[0].squares(1, 0.0)


def test_a_lost_peer_ends_the_wait_for_squares() -> None:
    tensors = specs([4096])
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2) as cluster:
        cluster.jobs[0].watch_squares(1)
        cluster.jobs[1].fail(1, "gives up")
        with pytest.raises(_native.EngineError):
            cluster.jobs[0].squares(1, WAIT)
