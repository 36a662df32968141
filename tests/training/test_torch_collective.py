"""Collectives on torch tensors: equal to torch's own, refused in one line where they cannot be."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from harness import ranks

import dovetail
from dovetail.errors import BadInput, Misuse


def _mine(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(100 * rank + count)).to(dtype)


def everything(rank: int, size: int) -> None:
    calls = dovetail.collective
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        ours, torchs = _mine(rank, 3001, dtype), _mine(rank, 3001, dtype)
        calls.all_reduce(ours)
        dist.all_reduce(torchs)
        torch.testing.assert_close(ours, torchs, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)
    mean = _mine(rank, 10)
    calls.all_reduce(mean, op="mean")
    torch.testing.assert_close(mean, sum(_mine(r, 10) for r in range(size)) / size)

    urgent, bulk = _mine(rank, 64), _mine(rank, 200_000)
    slow = calls.all_reduce(bulk, priority=9, async_op=True)
    fast = calls.all_reduce(urgent, priority=0, async_op=True)
    fast.wait()
    slow.wait()
    assert slow.is_completed()
    torch.testing.assert_close(bulk, sum(_mine(r, 200_000) for r in range(size)), rtol=1e-4, atol=1e-4)

    given = _mine(rank, 77)
    calls.broadcast(given, root=size - 1)
    assert torch.equal(given, _mine(size - 1, 77))

    out = torch.zeros(size, 5)
    calls.all_gather(out, _mine(rank, 5))
    assert torch.equal(out, torch.stack([_mine(r, 5) for r in range(size)]))
    piece = torch.zeros(5)
    calls.reduce_scatter(piece, torch.stack([_mine(rank, 5) + k for k in range(size)]))
    torch.testing.assert_close(piece, sum(_mine(r, 5) + rank for r in range(size)))

    for bad, word in ((torch.zeros(2, dtype=torch.int32), "int32"), (torch.zeros(4, 4).t()[1:], "contiguous")):
        with pytest.raises(BadInput, match=word):
            calls.all_reduce(bad)
    with pytest.raises(BadInput, match="'max' is unknown"):
        calls.all_reduce(torch.zeros(2), op="max")
    with pytest.raises(BadInput, match="root 9 is no rank"):
        calls.broadcast(torch.zeros(2), root=9)


def test_tensors_are_reduced_gathered_and_broadcast_as_torch_does() -> None:
    with ranks(3, everything, gloo=True) as group:
        group.results(90)


def test_without_a_process_group_it_says_what_to_call() -> None:
    with pytest.raises(Misuse, match="init_process_group"):
        dovetail.collective.all_reduce(torch.zeros(2))
