"""What the engine says it used of its links: every payload byte at its priority, and time in use."""

from __future__ import annotations

import time

import numpy as np
import pytest
from cluster import InProcessCluster

from dovetail.engine.table import TensorSpec
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.trace.graph import Param

SIZES = {"urgent": 40_000, "patient": 400_000}  # bytes
RATE = 4e6  # bytes per second out of each node


def test_bytes_by_priority_and_time_in_use() -> None:
    plan = Plan(
        policy="test",
        params=tuple(Param(name, nbytes) for name, nbytes in SIZES.items()),
        transfers=tuple(
            Transfer(REDUCE, ((name, 0, nbytes),), 3 * i) for i, (name, nbytes) in enumerate(SIZES.items())
        ),
        aggregation="shuffle",
        chunk_bytes=20_000,
    )
    specs = [TensorSpec(name, nbytes) for name, nbytes in SIZES.items()]
    with InProcessCluster(plan, specs, workers=2, rate=RATE) as cluster:
        assert cluster.jobs[0].sent_by_priority() == {}
        begun = time.monotonic()
        for iteration in (1, 2):
            cluster.reduce([[np.ones(n // 4, dtype=np.float32) for n in SIZES.values()] for _ in range(2)], iteration)
        took = time.monotonic() - begun
        time.sleep(0.2)  # a link at rest is not in use
        for job in cluster.jobs:
            # Between two ranks each byte leaves once: as a gradient, or as a mean.
            assert job.sent_by_priority() == {3 * i: 2 * nbytes for i, nbytes in enumerate(SIZES.values())}
            busy = job.counters()["busy_ns"] * 1e-9
            assert 0.5 * 2 * sum(SIZES.values()) / RATE < busy <= took + 0.1


def test_a_silent_engine_is_not_busy() -> None:
    plan = Plan(
        policy="test",
        params=(Param("p", 4),),
        transfers=(Transfer(REDUCE, (("p", 0, 4),)),),
        aggregation="shuffle",
    )
    with InProcessCluster(plan, [TensorSpec("p", 4)], workers=2) as cluster:
        time.sleep(0.1)
        assert [job.counters()["busy_ns"] for job in cluster.jobs] == [pytest.approx(0, abs=1e6)] * 2
