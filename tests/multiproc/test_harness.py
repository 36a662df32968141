"""The harness tells results, errors and silence apart, and leaves nothing running."""

from __future__ import annotations

import os
import time

import pytest
from harness import NotEnded, ranks, reach

from dovetail.errors import PeerLost
from dovetail.lab import Lab


def double(rank: int, size: int, extra: int) -> int:
    return 2 * rank + size + extra


def fail_on_one(rank: int, size: int) -> int:
    if rank == 1:
        raise PeerLost("rank 2 at 10.0.0.1: silent for 3.0 s in step 4", peer=2)
    return rank


def wait_for_ever(rank: int, size: int) -> None:
    reach("waiting")
    if rank == 1:
        time.sleep(1.0)  # the others are to have come this far, too
        raise KeyError("rank 1 gives up")
    time.sleep(600)


def sum_of_ranks(rank: int, size: int) -> tuple[float, str]:
    import torch
    import torch.distributed as dist

    value = torch.tensor([float(rank)])
    dist.all_reduce(value)
    return value.item(), os.environ["MASTER_ADDR"]


def test_results_come_in_rank_order() -> None:
    with ranks(3, double, args=(10,)) as group:
        assert group.results(30) == [13, 15, 17]


def test_an_error_is_told_with_class_and_message() -> None:
    with ranks(2, fail_on_one) as group:
        assert group.errors(within=30) == {1: PeerLost}
        assert "silent for 3.0 s in step 4" in group.messages()[1]
        with pytest.raises(AssertionError, match="rank 1 failed"):
            group.results(1)


def test_killed_ranks_are_left_out_and_silence_is_told_in_time() -> None:
    with ranks(3, wait_for_ever) as group:
        group.wait_for("waiting", within=30)
        group.kill(0)
        began = time.monotonic()
        assert group.errors(within=3) == {1: KeyError, 2: NotEnded}
        assert time.monotonic() - began < 10
        pids = [p.pid for p in group.processes]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_gloo_is_up_on_request() -> None:
    with ranks(2, sum_of_ranks, gloo=True) as group:
        assert group.results(60) == [(1.0, "127.0.0.1")] * 2


@pytest.mark.lab
def test_gloo_between_lab_hosts() -> None:
    with Lab(3, 25e6) as lab, ranks(3, sum_of_ranks, hosts=lab, gloo=True) as group:
        assert group.results(60) == [(3.0, lab.address(0))] * 3
