"""What must not bring a node down: crafted frames, guests that vanish, failures at bad moments, late calls."""

from __future__ import annotations

import contextlib
import os
import struct
import time

import numpy as np
import pytest
from cluster import WAIT, InProcessCluster, tcp_pair
from test_engine import plan_for, random_gradients, specs

from dovetail import _native

PARTIAL, RESULT, ASK, PUT, GET, HYPER, ABORT = 1, 2, 3, 4, 5, 7, 9
GUEST = 3  # the first number after 2 workers and 1 hub


def frame(kind: int, *, length: int = 0, chunk: int = 0, iteration: int = 1, flags: int = 0, slot: int = 0) -> bytes:
    return struct.pack("<IIIBBBB", length, chunk, iteration, kind, flags, slot, 0) + b"\0" * length


@contextlib.contextmanager
def hub_with(peer: int, *, rule: int = 1):
    """A hub's native job, and the raw other end of its link to `peer`."""
    tensors = specs([100])
    cluster = InProcessCluster(plan_for(tensors, aggregation="hub"), tensors, workers=2, hubs=1, rule=rule)
    job, view = cluster.jobs[2], cluster.table.for_node(2)
    job.table(view.programs, view.tensors, view.chunks, view.transfers, view.windows)
    job.rule(rule)
    near, far = tcp_pair()
    job.link(peer, 0, near)
    job.start()
    try:
        yield job, far
    finally:
        os.close(far)
        job.close()


CRAFTED = {
    "a gradient without bytes": frame(PARTIAL),
    "a gradient of iteration 0": frame(PARTIAL, length=400, iteration=0),
    "an absent gradient with bytes": frame(PARTIAL, length=400, flags=1),
    "a gradient of an unknown chunk": frame(PARTIAL, length=400, chunk=77),
    "a result for a root": frame(RESULT, length=400),
    "a value without bytes": frame(PUT),
    "a value in slot 9": frame(PUT, length=400, slot=9),
    "a question nobody offered to answer": frame(ASK),
    "hyperparameters without bytes": frame(HYPER),
    "hyperparameters of group 100,000": frame(HYPER, length=56, chunk=100_000),
    "an endless reason": frame(ABORT, length=5000),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_frame_that_does_not_fit_fails_the_job_by_name(what: str) -> None:
    with hub_with(0) as (job, far):
        os.write(far, CRAFTED[what])
        with pytest.raises(_native.EngineError, match="does not fit") as caught:
            job.wait([0], 1, WAIT)
        assert caught.value.args[0] == 0


@pytest.mark.parametrize("what", CRAFTED)
def test_a_guest_can_fail_nobody(what: str) -> None:
    with hub_with(GUEST) as (job, far):
        os.write(far, CRAFTED[what])
        time.sleep(0.1)
        assert job.failure() is None


def test_a_reason_in_another_alphabet_is_still_a_reason() -> None:
    with hub_with(0) as (job, far):
        os.write(far, struct.pack("<IIIBBBB", 3, 0, 1, ABORT, 0, 0, 0) + b"\xff\xfeA")
        with pytest.raises(_native.EngineError, match=r"\?\?A"):
            job.wait([0], 1, WAIT)


def test_a_guest_that_waits_for_a_version_may_vanish() -> None:
    with hub_with(GUEST) as (job, _far):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            near, other = tcp_pair()
            job.link(GUEST, 0, near)
            os.write(other, frame(GET, iteration=9))
            os.close(other)
            time.sleep(0.05)
        time.sleep(0.3)
        assert job.failure() is None
        assert len(os.listdir("/proc/self/fd")) <= before, "links of guests that left are kept"


def test_deterministic_sums_go_on_when_the_first_in_order_has_no_gradient() -> None:
    tensors = specs([100])
    plan = plan_for(tensors, aggregation="shuffle")
    with InProcessCluster(plan, tensors, workers=2, deterministic=True) as cluster:
        mine, room = np.ones(100, np.float32), np.zeros(100, np.float32)
        cluster.jobs[0].bind(0, room.ctypes.data)
        cluster.jobs[1].submit(0, 1, mine.ctypes.data)
        time.sleep(0.1)
        cluster.jobs[0].submit(0, 1, 0)
        assert all(job.wait([0], 1, WAIT) for job in cluster.jobs)
        assert (room == 0.5).all()


def test_after_a_failure_the_callers_memory_is_left_alone() -> None:
    tensors = specs([500_000])
    with InProcessCluster(plan_for(tensors, aggregation="hub"), tensors, workers=2, hubs=1, rate=4e6) as cluster:
        gradients = random_gradients([500_000], 2, seed=1)
        for rank in range(2):
            cluster.jobs[rank].submit(0, 1, gradients[rank][0].ctypes.data)
        time.sleep(0.7)  # results are coming in, straight to the caller's memory
        cluster.jobs[1].fail(1, "gives up")
        with pytest.raises(_native.EngineError, match="gives up"):
            cluster.jobs[0].wait([0], 1, WAIT)
        gradients[0][0].fill(7.0)
        time.sleep(0.3)
        assert (gradients[0][0] == 7.0).all()


def test_close_stays_while_a_slow_peer_is_still_being_served() -> None:
    tensors = specs([1_000_000])  # 4 MB at 1 MB/s: the root is done long before its last byte has left
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2, rate=1e6) as cluster:
        gradients = random_gradients([1_000_000], 2, seed=2)
        for rank in range(2):
            cluster.jobs[rank].submit(0, 1, gradients[rank][0].ctypes.data)
        for rank in range(2):
            assert cluster.jobs[rank].wait([0], 1, WAIT)
            cluster.jobs[rank].close()
        assert [job.failure() for job in cluster.jobs] == [None, None]


def test_calls_after_close_are_harmless() -> None:
    tensors = specs([10])
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2) as cluster:
        values = np.zeros(10, np.float32)
        cluster.jobs[0].close()
        cluster.jobs[0].submit(0, 1, values.ctypes.data)
        cluster.jobs[0].backward_done(1)
        cluster.jobs[0].release(1)
        cluster.jobs[0].put(0, 0, values.ctypes.data, 0)
        assert not cluster.jobs[0].wait([0], 1, 0.1)


def test_an_idle_job_lives_with_a_short_timeout() -> None:
    tensors = specs([10])
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=2, timeout=1.0) as cluster:
        time.sleep(2.0)
        assert [job.failure() for job in cluster.jobs] == [None, None]
