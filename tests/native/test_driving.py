"""Callers that send little and wait for it do the engine's work on their own thread, and nothing is lost by that."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import platform
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cluster import WAIT, InProcessCluster
from test_engine import plan_for, specs

from dovetail import _native

LITTLE, MUCH = 1000, 300_000  # numbers of a tensor
RANKS = 3


@contextlib.contextmanager
def cluster_of(sizes: list[int], **options: float):
    tensors = specs(sizes)
    with InProcessCluster(plan_for(tensors, aggregation="shuffle"), tensors, workers=RANKS, **options) as cluster:
        yield cluster


def on_all_ranks(task: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(task, range(RANKS)))


def naps() -> int:
    """How often the engine's own threads of this process went to sleep."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            if (task / "comm").read_text().strip() == "dovetail":
                status = (task / "status").read_text()
                total += int(status.split("voluntary_ctxt_switches:")[1].split()[0])
    return total


def sums(cluster: InProcessCluster, first: int, count: int, *, more: bool) -> None:
    def rank(number: int) -> None:
        for iteration in range(first, first + count):
            values = np.full(LITTLE, float(number), dtype=np.float32)
            cluster.jobs[number].submit(0, iteration, values.ctypes.data, more)
            assert cluster.jobs[number].wait([0], iteration, WAIT)
            assert values[0] == values[-1] == 1.0  # the mean of 0, 1 and 2

    on_all_ranks(rank)


def test_little_that_is_waited_for_wakes_no_thread_of_the_engine() -> None:
    with cluster_of([LITTLE]) as cluster:
        shares = []
        for start in range(1, 1800, 600):  # thrice: a busy machine may spoil one
            begun = naps()
            sums(cluster, start, 300, more=False)
            between = naps()
            sums(cluster, start + 300, 300, more=True)
            shares.append((naps() - between) / (between - begun))
        assert min(shares) < 0.5, shares


def test_little_and_much_pauses_and_other_threads_mix() -> None:
    rounds = 60
    with cluster_of([LITTLE, MUCH, LITTLE]) as cluster:

        def rank(number: int) -> None:
            chance = random.Random(number)
            job = cluster.jobs[number]
            for iteration in range(1, rounds + 1):
                little, much, other = (np.full(n, float(number), dtype=np.float32) for n in (LITTLE, MUCH, LITTLE))
                job.submit(1, iteration, much.ctypes.data)
                beside = threading.Thread(target=waited, args=(job, 2, iteration, other))
                beside.start()
                waited(job, 0, iteration, little)
                time.sleep(chance.choice([0, 0, 0.0005, 0.003]))
                assert job.wait([1], iteration, WAIT)
                assert much[0] == much[-1] == 1.0
                beside.join()
                assert other[-1] == little[-1] == 1.0

        def waited(job: _native.Job, tensor: int, iteration: int, values: np.ndarray) -> None:
            job.submit(tensor, iteration, values.ctypes.data, True)
            assert job.wait([tensor], iteration, WAIT)

        on_all_ranks(rank)


def test_much_arrives_though_its_receiver_drove_a_moment_ago() -> None:
    with cluster_of([LITTLE, MUCH]) as cluster:
        sums(cluster, 1, 50, more=True)
        own = [np.full(MUCH, float(number), dtype=np.float32) for number in range(RANKS)]
        for number, values in enumerate(own):
            cluster.jobs[number].submit(1, 1, values.ctypes.data)
        end = time.monotonic() + WAIT
        while any(job.completed(1) < 1 for job in cluster.jobs) and time.monotonic() < end:
            time.sleep(0.001)  # nobody waits in the engine
        assert [values[-1] for values in own] == [1.0] * RANKS


def test_a_caller_that_drives_hears_of_a_lost_peer() -> None:
    with cluster_of([LITTLE]) as cluster:
        sums(cluster, 1, 50, more=True)
        values = [np.ones(LITTLE, dtype=np.float32) for _ in range(RANKS)]
        begun = time.monotonic()

        def rank(number: int) -> str:
            if number == 2:
                time.sleep(0.2)
                cluster.jobs[2].close()
                return ""
            job = cluster.jobs[number]
            job.submit(0, 51, values[number].ctypes.data, True)
            with pytest.raises(_native.EngineError) as caught:
                job.wait([0], 51, WAIT)
            return caught.value.args[1]

        assert on_all_ranks(rank)[:2] == ["has left the job"] * 2
        assert time.monotonic() - begun < 5


def test_a_caller_that_drives_keeps_its_time() -> None:
    with cluster_of([LITTLE]) as cluster:
        sums(cluster, 1, 50, more=True)
        values = np.ones(LITTLE, dtype=np.float32)
        cluster.jobs[0].submit(0, 51, values.ctypes.data, True)
        begun = time.monotonic()
        assert not cluster.jobs[0].wait([0], 51, 0.3)
        assert 0.25 < time.monotonic() - begun < 5
        others = [np.ones(LITTLE, dtype=np.float32) for _ in range(2)]
        for number, own in enumerate(others, start=1):
            cluster.jobs[number].submit(0, 51, own.ctypes.data)
        assert all(job.wait([0], 51, WAIT) for job in cluster.jobs)


@contextlib.contextmanager
def flushing_denormals():
    """This thread's arithmetic as after torch.set_flush_denormal(True)."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    own, other = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()  # glibc's fenv_t; the last word is MXCSR
    libm.fegetenv(own)
    libm.fegetenv(other)
    other[7] |= 0x8040
    libm.fesetenv(other)
    try:
        yield
    finally:
        libm.fesetenv(own)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the flags of x86-64 only")
def test_a_callers_arithmetic_does_not_change_its_sums() -> None:
    tiny = np.full(LITTLE, 3e-40, dtype=np.float32)
    with cluster_of([LITTLE]) as cluster:

        def rank(number: int) -> None:
            with flushing_denormals():
                for iteration in range(1, 101):
                    values = tiny.copy()
                    cluster.jobs[number].submit(0, iteration, values.ctypes.data, True)
                    assert cluster.jobs[number].wait([0], iteration, WAIT)
                    assert values.view(np.uint32).min() > 0, f"flushed in iteration {iteration}"

        on_all_ranks(rank)
