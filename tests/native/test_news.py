"""A thread that waits for whatever comes next: results, nudges, and the end of the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from cluster import WAIT, InProcessCluster

from dovetail import _native
from dovetail.engine.table import TensorSpec
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.trace.graph import Param


def two_ranks() -> InProcessCluster:
    plan = Plan(
        policy="test", params=(Param("t", 400),), transfers=(Transfer(REDUCE, (("t", 0, 400),)),), aggregation="shuffle"
    )
    return InProcessCluster(plan, [TensorSpec("t", 400)], workers=2)


def waiting(call: Callable[[], int]) -> tuple[threading.Thread, list[object]]:
    """The call on a thread that is asleep in it by now, and what it gave."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except _native.EngineError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.05)
    return thread, found


def test_a_result_is_news_once() -> None:
    with two_ranks() as cluster:
        thread, found = waiting(lambda: cluster.jobs[0].news(0, WAIT))
        assert thread.is_alive()
        cluster.reduce([[np.ones(100, np.float32)], [np.ones(100, np.float32)]], 1)
        thread.join(WAIT)
        assert found == [1]
        assert cluster.jobs[0].news(0, WAIT) == 1, "what was not seen yet needs no wait"
        assert cluster.jobs[0].news(1, 0.01) == 1, "and nothing more has come"


def test_a_nudge_wakes() -> None:
    with two_ranks() as cluster:
        thread, found = waiting(lambda: cluster.jobs[0].news(0, WAIT))
        cluster.jobs[0].nudge()
        thread.join(WAIT)
        assert found == [1]


@pytest.mark.parametrize("end", ["fail", "close"])
def test_the_end_of_the_job_is_not_waited_for_in_vain(end: str) -> None:
    with two_ranks() as cluster:
        thread, found = waiting(lambda: cluster.jobs[0].news(0, 60.0))
        if end == "fail":
            cluster.jobs[0].fail(1, "gave up")
        else:
            cluster.jobs[0].close()
        thread.join(WAIT)
        assert len(found) == 1
        assert isinstance(found[0], _native.EngineError)
