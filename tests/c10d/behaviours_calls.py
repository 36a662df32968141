"""What people call on torch.distributed, each a function of rank and size that returns what it saw."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as autograd_calls

ROW = 1000  # calls; the fault they are for showed within some hundred
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def mine(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + sum(shape))
    return (4 * torch.randn(*shape, generator=generator)).to(dtype)


def all_reduce_types_and_sizes(rank: int, size: int) -> Any:
    seen = []
    for dtype in (*FLOATS, torch.int32, torch.int64, torch.uint8):
        for count in (0, 1, 7, 1000, 100_003):
            data = mine(rank, count, dtype=dtype)
            dist.all_reduce(data)
            seen.append(data)
    scalar = mine(rank, 1)[0].clone()
    dist.all_reduce(scalar)
    return [*seen, scalar]


def all_reduce_operations(rank: int, size: int) -> Any:
    seen = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        for dtype in (torch.float32, torch.float64):
            data = mine(rank, 501, dtype=dtype)
            dist.all_reduce(data, op=op)
            seen.append(data)
    bits = torch.tensor([rank + 1, 6], dtype=torch.int32)
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    return [*seen, bits]


def all_reduce_views_and_orders(rank: int, size: int) -> Any:
    whole, turned, last = mine(rank, 6, 8), mine(rank, 5, 7).t(), mine(rank, 2, 3, 4, 5)
    last = last.contiguous(memory_format=torch.channels_last)
    dist.all_reduce(whole[2:4])
    dist.all_reduce(turned)
    dist.all_reduce(last)
    return [whole, turned, last]


def all_reduce_many_at_once(rank: int, size: int) -> Any:
    data = [mine(rank, 3000) + k for k in range(20)]
    works = [dist.all_reduce(d, async_op=True) for d in data]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() for work in works)
    return data


def all_reduce_large(rank: int, size: int) -> Any:
    """Larger than a piece, several at once, among small ones."""
    data = [mine(rank, count) for count in (3_000_000, 10, 1 << 20, 2_500_001, 10)]
    for work in [dist.all_reduce(d, op=dist.ReduceOp.AVG, async_op=True) for d in data]:
        work.wait()
    turned = mine(rank, 1500, 1000).t()
    dist.all_reduce(turned)
    # Hashes: whole tensors of this size would only be carried to the test and back.
    return [hashlib.sha256(d.contiguous().numpy().tobytes()).hexdigest() for d in (*data, turned)]


def futures_of_works(rank: int, size: int) -> Any:
    data = mine(rank, 999)
    doubled = dist.all_reduce(data, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    other = mine(rank, 5)
    sent = dist.broadcast(other, 0, async_op=True).get_future()
    sent.wait()
    return [doubled.wait(), data, other]


def futures_of_nothing(rank: int, size: int) -> Any:
    future = dist.all_reduce(torch.empty(0), async_op=True).get_future()
    end = time.monotonic() + 10
    while not future.done() and time.monotonic() < end:
        time.sleep(0.01)
    return future.done()


def broadcasts_and_gathers(rank: int, size: int) -> Any:
    seen: list[Any] = []
    data = mine(rank, 77)
    dist.broadcast(data, size - 1)
    seen.append(data)
    total = mine(rank, 77)
    dist.reduce(total, 0)
    seen.append(total if rank == 0 else None)
    pieces = [torch.zeros(5) for _ in range(size)]
    dist.all_gather(pieces, mine(rank, 5))
    seen.append(pieces)
    row = torch.zeros(size * 6)
    dist.all_gather_into_tensor(row, mine(rank, 6))
    seen.append(row)
    got = [torch.zeros(3) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(rank, 3), got, dst=0)
    seen.append(got)
    one = torch.zeros(4)
    dist.scatter(one, [mine(k, 4) for k in range(size)] if rank == 0 else None, src=0)
    seen.append(one)
    return seen


def scatters_and_exchanges(rank: int, size: int) -> Any:
    seen: list[Any] = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        piece = torch.zeros(9)
        dist.reduce_scatter_tensor(piece, mine(rank, size * 9), op=op)
        seen.append(piece)
    listed = torch.zeros(4)
    dist.reduce_scatter(listed, [mine(rank, 4) + k for k in range(size)])
    seen.append(listed)
    out = torch.zeros(size * 3)
    dist.all_to_all_single(out, mine(rank, size * 3))
    seen.append(out)
    uneven = torch.zeros(sum(1 + r for r in range(size)))
    dist.all_to_all_single(uneven, mine(rank, (rank + 1) * size), [r + 1 for r in range(size)], [rank + 1] * size)
    return [*seen, uneven]


def objects(rank: int, size: int) -> Any:
    every: list[Any] = [None] * size
    dist.all_gather_object(every, {"rank": rank, "data": mine(rank, 3)})
    said: list[Any] = [f"from {rank}", rank]
    dist.broadcast_object_list(said, src=size - 1)
    at_zero: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank * 10, at_zero, dst=0)
    given: list[Any] = [None]
    dist.scatter_object_list(given, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    return [every, said, at_zero, given]


def point_to_point(rank: int, size: int) -> Any:
    after, before = (rank + 1) % size, (rank - 1) % size
    seen: list[Any] = []
    got = torch.zeros(11)
    sending = dist.isend(mine(rank, 11), after, tag=3)
    dist.recv(got, before, tag=3)
    sending.wait()
    seen.append(got)
    got, other = torch.zeros(5), torch.zeros(5)
    calls = [dist.P2POp(dist.isend, mine(rank, 5), after), dist.P2POp(dist.irecv, got, before)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    seen.append(got)
    if rank == 0:
        seen.append([dist.recv(other), other])
    elif rank == 1:
        dist.send(mine(rank, 5), 0)
    if rank == 0:
        time.sleep(0.6)  # a partner that lets us wait is no error
        dist.send(mine(rank, 5), 1)
    elif rank == 1:
        dist.recv(other, 0)
        seen.append(other)
    listed: list[Any] = [None]
    if rank == 0:
        dist.send_object_list([{"to": 1}], dst=1)
    elif rank == 1:
        dist.recv_object_list(listed, src=0)
    return [*seen, listed]


def barriers(rank: int, size: int) -> Any:
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    if dist.get_backend() == "gloo":
        dist.monitored_barrier()
    return True


def groups(rank: int, size: int) -> Any:
    alone = [dist.new_group([r]) for r in range(size)][rank]
    turned, plain = dist.new_group(list(range(size))[::-1]), dist.new_group(backend="gloo")
    seen = []
    for group in (alone, turned, plain):
        data = mine(rank, 1001)
        dist.all_reduce(data, group=group)
        dist.barrier(group)
        seen += [data, dist.get_rank(group), dist.get_world_size(group)]
        dist.destroy_process_group(group)
    after = mine(rank, 13)
    dist.all_reduce(after)
    return [*seen, after]


def functional_collectives(rank: int, size: int) -> Any:
    group, data = dist.group.WORLD, mine(rank, 6, 4)
    seen = [
        funcol.all_reduce(data, "sum", group),
        funcol.all_reduce(data, "avg", group),
        funcol.all_reduce(data, "max", group),
        funcol.all_gather_tensor(data, 0, group),
        funcol.reduce_scatter_tensor(data, "sum", 0, group),
        funcol.broadcast(data, 0, group),
        *funcol.all_reduce_coalesced([data, data[:2] + 1], "sum", group),
    ]
    return [torch.clone(tensor) for tensor in seen]


def functional_collectives_in_a_row(rank: int, size: int) -> Any:
    # Each drops its tensors while the last one's thread still does: a call made with the GIL held would hang soon.
    name, total = dist.group.WORLD.group_name, torch.zeros(4)
    for step in range(ROW):
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(mine(rank, 2) + step, size, name)
        mean = torch.ops._c10d_functional.reduce_scatter_tensor(funcol.wait_tensor(gathered), "sum", size, name)
        total[:2] += funcol.wait_tensor(mean)
        del gathered, mean
    return total


def collectives_with_gradients(rank: int, size: int) -> Any:
    data = mine(rank, 12).requires_grad_()
    (autograd_calls.all_reduce(data * 2) ** 2).sum().backward()
    pieces = mine(rank, 4).requires_grad_()
    torch.stack(autograd_calls.all_gather(pieces)).pow(3).sum().backward()
    return [data.grad, pieces.grad]


BEHAVIOURS = (
    all_reduce_types_and_sizes, all_reduce_operations, all_reduce_views_and_orders, all_reduce_many_at_once,
    all_reduce_large,
    futures_of_works, futures_of_nothing,
    broadcasts_and_gathers, scatters_and_exchanges, objects, point_to_point, barriers, groups,
    functional_collectives, functional_collectives_in_a_row, collectives_with_gradients,
)  # fmt: skip
