"""Every behaviour on Gloo and on dovetail, in the same two processes: the same results, to the bit."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import behaviours_calls
import behaviours_training
import pytest
import torch
import torch.distributed as dist
from harness import meet, ranks

BEHAVIOURS: dict[str, Callable[[int, int], Any]] = {
    behaviour.__name__: behaviour for behaviour in (*behaviours_calls.BEHAVIOURS, *behaviours_training.BEHAVIOURS)
}


def on(backend: str, rank: int, size: int, names: list[str]) -> dict[str, Any]:
    """What each behaviour saw on this backend; a failure is told by its traceback, and ends the run."""
    meet(backend, backend)
    seen: dict[str, Any] = {}
    for name in names:
        try:
            seen[name] = BEHAVIOURS[name](rank, size)
        except Exception:
            seen[name] = traceback.format_exc()
            break  # the ranks may be out of step now
    if backend == "dovetail":
        assert dist.group.WORLD.reduced > 3, "the engine did not run the reductions"
    dist.destroy_process_group()
    return seen


def both(rank: int, size: int, names: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    import dovetail.c10d  # noqa: F401

    torch.set_num_threads(1)
    return on("gloo", rank, size, names), on("dovetail", rank, size, names)


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bool(torch.equal(one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.fixture(scope="module")
def seen() -> Iterator[list[Any]]:
    with ranks(2, both, args=(list(BEHAVIOURS),)) as group:
        yield group.results(120)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_two_ranks_see_the_same_to_the_bit(name: str, seen: list[Any]) -> None:
    for rank, (gloo, ours) in enumerate(seen):
        assert name in gloo, f"rank {rank} did not get to it on Gloo"
        assert not isinstance(gloo[name], str), gloo[name]
        assert name in ours, f"rank {rank} did not get to it on dovetail"
        assert not isinstance(ours[name], str), ours[name]
        assert same(gloo[name], ours[name]), f"rank {rank}: Gloo {gloo[name]}, dovetail {ours[name]}"


def four(rank: int, size: int) -> Any:
    import dovetail.c10d  # noqa: F401

    torch.set_num_threads(1)
    return [on(backend, rank, size, ["ddp_plain"])["ddp_plain"][0] for backend in ("gloo", "dovetail")]


def test_four_ranks_of_ddp_have_the_same_losses() -> None:
    with ranks(4, four) as group:
        for gloo, ours in group.results(90):
            assert ours == pytest.approx(gloo, abs=1e-5)
