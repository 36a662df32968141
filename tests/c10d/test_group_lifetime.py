"""A group of the backend over its life: more sizes than the engine keeps channels for, an end, and another start."""

from __future__ import annotations

import torch
import torch.distributed as dist
from harness import meet, ranks


def start(number: int) -> None:
    import dovetail.c10d  # noqa: F401

    torch.set_num_threads(1)
    meet("dovetail", str(number))


def many_sizes(rank: int, size: int) -> list[int]:
    """How many calls the engine had run after each one."""
    from dovetail.c10d import backend

    backend.MOST_KINDS = 3
    start(0)
    counts = []
    for count in (10, 20, 30, 40, 50, 10, 50, 30):
        data = torch.arange(float(count)) + rank
        dist.all_reduce(data)
        assert torch.equal(data, 2 * torch.arange(float(count)) + 1)
        counts.append(dist.group.WORLD.reduced)
    mean = torch.full((10,), float(rank))  # of a known size, but divided: one more kind
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert mean.tolist() == [0.5] * 10
    works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (40, 10, 60, 20)]  # both in turn, not waited for
    for work in works:
        work.wait()
        assert work.result()[0].unique().tolist() == [2.0]
    return [*counts, dist.group.WORLD.reduced]


def test_more_sizes_than_the_engine_has_channels_for_are_reduced_by_gloo() -> None:
    with ranks(2, many_sizes) as group:
        for counts in group.results(60):
            assert counts == [1, 2, 3, 3, 3, 4, 4, 5, 7]


def again(rank: int, size: int) -> list[int]:
    """Of each life, how many calls the engine ran."""
    lives = []
    for life in range(3):
        start(life)
        data = torch.full((5000 + life,), float(rank))
        dist.all_reduce(data)
        assert data.unique().tolist() == [1.0]
        other = dist.new_group()
        work = dist.all_reduce(data, group=other, async_op=True)
        work.get_future().wait()
        assert data.unique().tolist() == [2.0]
        dist.barrier()
        lives.append(dist.group.WORLD.reduced + other.reduced)
        dist.destroy_process_group()
        assert not dist.is_initialized()
    return lives


def test_all_groups_are_destroyed_and_others_take_their_place() -> None:
    with ranks(2, again) as group:
        for lives in group.results(60):
            assert lives == [2, 2, 2]
