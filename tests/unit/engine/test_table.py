"""The chunk table: every byte once, whole elements, even loads, the same for everybody."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engine import table as t
from dovetail.engine.table import Table, TensorSpec, build
from dovetail.errors import BadInput
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, REDUCE, Plan, Transfer
from dovetail.plan.steps import ASK, GATE, OFFER
from dovetail.trace.graph import Param


def plan_of(sizes: list[int], transfers: list[Transfer], **more: object) -> Plan:
    params = tuple(Param(f"p{i}", n) for i, n in enumerate(sizes))
    return Plan(policy="test", params=params, transfers=tuple(transfers), **more)  # type: ignore[arg-type]


def reduces(sizes: list[int], slices: int = 1 << 40) -> list[Transfer]:
    whole = [Transfer(REDUCE, ((f"p{i}", 0, n),), priority=i) for i, n in enumerate(sizes)]
    return [piece for transfer in whole for piece in transfer.split(slices)]


def specs(sizes: list[int], dtype: str = "f32") -> list[TensorSpec]:
    return [TensorSpec(f"p{i}", n, dtype) for i, n in enumerate(sizes)]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Plan, list[TensorSpec], int, int]:
    dtype = draw(st.sampled_from(sorted(t.DTYPES)))
    item = t.DTYPES[dtype][1]
    sizes = [item * n for n in draw(st.lists(st.integers(0, 700), min_size=1, max_size=6))]
    ways: list[Transfer] = []
    for i, size in enumerate(sizes):
        cut = Transfer(PUSH, ((f"p{i}", 0, size),), priority=draw(st.integers(-3, 3)))
        if draw(st.booleans()):
            ways += [Transfer(REDUCE, x.parts, x.priority) for x in cut.split(draw(st.integers(5, 900)))]
        else:  # pushes and pulls with borders of their own, not at whole elements
            window = draw(st.sampled_from([BACKWARD, FORWARD]))
            ways += cut.split(draw(st.integers(5, 900)))
            pull = Transfer(PULL, ((f"p{i}", 0, size),), draw(st.integers(-3, 3)), window=window)
            ways += pull.split(draw(st.integers(5, 900)))
    hubs = draw(st.integers(0, 2))
    plan = plan_of(sizes, ways, aggregation="hub" if hubs else "shuffle", chunk_bytes=draw(st.integers(64, 1000)))
    return plan, specs(sizes, dtype), draw(st.integers(1, 4)), hubs


@given(jobs())
@settings(max_examples=100, deadline=None)
def test_every_byte_is_in_one_chunk_of_whole_elements(job: tuple[Plan, list[TensorSpec], int, int]) -> None:
    plan, tensors, workers, hubs = job
    table = build(plan, tensors, workers=workers, hubs=hubs, lanes=2)
    covered = [np.zeros(spec.nbytes, dtype=int) for spec in tensors]
    for tensor, offset, nbytes in table.rows[:, :3]:
        item = t.DTYPES[tensors[tensor].dtype][1]
        assert 0 < nbytes <= plan.chunk_bytes
        assert offset % item == 0
        assert nbytes % item == 0
        covered[tensor][offset : offset + nbytes] += 1
    assert all((c == 1).all() for c in covered)
    assert t.decode(t.encode(table)) == table


@given(jobs())
@settings(max_examples=40, deadline=None)
def test_chunks_keep_the_priorities_of_the_transfers_they_come_from(
    job: tuple[Plan, list[TensorSpec], int, int],
) -> None:
    plan, tensors, workers, hubs = job
    table = build(plan, tensors, workers=workers, hubs=hubs, lanes=1)
    outgoing = [x for x in plan.transfers if x.kind != PULL]
    for row in table.rows:
        name = tensors[row[t.TENSOR]].name
        last = row[t.OFFSET] + row[t.NBYTES] - 1  # a border inside an element moves to the element's start
        push = next(x for x in outgoing if any(n == name and o <= last < o + b for n, o, b in x.parts))
        pull = next(
            x for x in plan.transfers if x.kind != PUSH and any(n == name and o <= last < o + b for n, o, b in x.parts)
        )
        assert row[t.PUSH_PRIORITY] == push.priority
        assert outgoing[row[t.PUSH_TRANSFER]].priority == push.priority
        assert row[t.PULL_PRIORITY] == pull.priority
        assert row[t.PULL_WINDOW] == int(pull.kind == PULL and pull.window == FORWARD)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_loads_of_routes_and_lanes_are_even_to_one_chunk(elements: list[int], workers: int, lanes: int) -> None:
    sizes = [4 * n for n in elements]
    table = build(plan_of(sizes, reduces(sizes)), specs(sizes), workers=workers, hubs=0, lanes=lanes, chunk_bytes=1024)
    rows = table.rows
    biggest = rows[:, t.NBYTES].max()
    loads = np.bincount(rows[:, t.ROUTE], weights=rows[:, t.NBYTES], minlength=workers)
    assert loads.max() - loads.min() <= biggest
    for route in range(workers):
        mine = rows[rows[:, t.ROUTE] == route]
        per_lane = np.bincount(mine[:, t.LANE], weights=mine[:, t.NBYTES], minlength=lanes)
        assert per_lane.max() - per_lane.min() <= biggest


def test_consecutive_chunks_alternate_over_the_routes_and_then_the_lanes() -> None:
    sizes = [16 * 1024]
    table = build(plan_of(sizes, reduces(sizes)), specs(sizes), workers=4, hubs=0, lanes=2, chunk_bytes=1024)
    routes, lanes = table.rows[:, t.ROUTE].tolist(), table.rows[:, t.LANE].tolist()
    assert all(sorted(routes[i : i + 4]) == [0, 1, 2, 3] for i in range(0, 16, 4))
    for route in range(4):
        mine = [lane for lane, r in zip(lanes, routes, strict=True) if r == route]
        assert all(a != b for a, b in pairwise(mine))


def test_a_node_is_given_its_own_programs_and_minus_one_elsewhere() -> None:
    sizes = [8192]
    plan = plan_of(sizes, reduces(sizes), aggregation="hub")
    table = build(plan, specs(sizes), workers=2, hubs=2, lanes=1, chunk_bytes=1024)
    worker, first = table.for_node(0), table.for_node(2)
    assert len(worker.programs) == 2
    assert len(first.programs) == 1
    assert (worker.chunks[:, t.ROUTE] >= 0).all()
    assert sorted(set(first.chunks[:, t.ROUTE].tolist())) == [-1, 0]
    assert (first.chunks[:, t.ROUTE] == 0).sum() == 4
    assert table.peers(0) == (2, 3)
    assert table.peers(3) == (0, 1)


def ops(table: Table, node: int) -> set[str]:
    return {step.op for route in table.routes for step in route.get(node, ())}


@pytest.mark.parametrize(
    ("aggregation", "hubs", "window", "node", "expected"),
    [
        ("hub", 1, FORWARD, 0, ASK),
        ("hub", 1, FORWARD, 2, OFFER),
        ("shuffle", 0, BACKWARD, 0, ASK),
        ("shuffle", 0, FORWARD, 0, GATE),
        ("ring", 0, FORWARD, 0, GATE),
    ],
)
def test_a_pull_of_its_own_is_asked_for_or_gated(
    aggregation: str, hubs: int, window: str, node: int, expected: str
) -> None:
    transfers = [Transfer(PUSH, (("p0", 0, 4096),)), Transfer(PULL, (("p0", 0, 4096),), window=window)]
    plan = plan_of([4096], transfers, aggregation=aggregation)
    assert expected in ops(build(plan, specs([4096]), workers=2, hubs=hubs, lanes=1), node)


def test_one_plan_may_mix_reduces_with_pulls() -> None:
    transfers = [
        Transfer(REDUCE, (("p0", 0, 4096),)),
        Transfer(PUSH, (("p1", 0, 4096),)),
        Transfer(PULL, (("p1", 0, 4096),), window=FORWARD),
    ]
    plan = plan_of([4096, 4096], transfers, chunk_bytes=512)
    table = build(plan, specs([4096, 4096]), workers=2, hubs=0, lanes=1)
    gated = [any(s.op == GATE for p in table.routes[r].values() for s in p) for r in table.rows[:, t.ROUTE]]
    assert gated == [tensor == 1 for tensor in table.rows[:, t.TENSOR]]


def test_the_ranks_of_a_job_build_the_same_table() -> None:
    sizes = [4 * n for n in (1000, 3, 777, 0, 12)]
    one, two = (build(plan_of(sizes, reduces(sizes, 999)), specs(sizes), workers=3, hubs=0, lanes=2) for _ in range(2))
    other = build(plan_of(sizes, reduces(sizes, 999)), specs(sizes), workers=3, hubs=0, lanes=1)
    assert one == two
    assert one.digest == two.digest != other.digest


def test_a_hundred_thousand_chunks_take_seconds_at_most() -> None:
    sizes = [4 * 1024 * 100] * 1000
    begun = time.perf_counter()
    table = build(plan_of(sizes, reduces(sizes)), specs(sizes), workers=8, hubs=0, lanes=2, chunk_bytes=4096)
    t.decode(t.encode(table)).for_node(3)
    assert len(table.rows) == 100_000
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([TensorSpec("p0", 8)], r"'p0' has 8 bytes, but the plan has 16 bytes"),
        ([TensorSpec("q", 16)], r"'q' has 16 bytes, but the plan has no such parameter"),
        ([TensorSpec("p0", 16), TensorSpec("p0", 16)], "given twice"),
        ([], "moves 'p0', which is not among the tensors"),
    ],
)
def test_tensors_that_do_not_fit_the_plan_are_named(tensors: list[TensorSpec], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build(plan_of([16], reduces([16])), tensors, workers=2, hubs=0, lanes=1)


def test_types_that_the_engine_cannot_sum_are_refused() -> None:
    with pytest.raises(BadInput, match="'i8'"):
        TensorSpec("p", 4, "i8")
    with pytest.raises(BadInput, match="no whole number"):
        TensorSpec("p", 6, "f32")


@given(st.binary(max_size=200), st.data())
@settings(max_examples=60, deadline=None)
def test_garbage_is_not_a_table(noise: bytes, data: st.DataObject) -> None:
    with pytest.raises(BadInput):
        t.decode(noise)
    sizes = [400]
    good = build(plan_of(sizes, reduces(sizes)), specs(sizes), workers=2, hubs=0, lanes=1, chunk_bytes=100)
    rows = good.rows.copy()
    column = data.draw(st.sampled_from([t.TENSOR, t.OFFSET, t.NBYTES, t.ROUTE, t.LANE, t.PUSH_TRANSFER]))
    rows[data.draw(st.integers(0, len(rows) - 1)), column] = data.draw(st.sampled_from([-(1 << 62), -4, 1 << 62]))
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    with pytest.raises(BadInput):
        t.decode(t.encode(Table(**{**fields, "chunks": rows.tobytes()})))


def test_depth_cuts_a_transfer_into_at_least_so_many_chunks() -> None:
    def chunks(nbytes: int, depth: int) -> list[int]:
        transfer = Transfer(REDUCE, (("p0", 0, nbytes),), depth=depth)
        table = build(plan_of([nbytes], [transfer]), specs([nbytes]), workers=4, hubs=0, lanes=1)
        return [int(n) for n in table.rows[:, t.NBYTES]]

    assert chunks(65536, 1) == [32768] * 2
    assert chunks(65536, 8) == [8192] * 8
    assert chunks(1 << 20, 8) == [58256] * 17 + [58224], "larger chunks could not be overtaken in time"
    assert chunks(100, 8) == [52, 48], "no chunk is too small to be worth its header"


def test_a_sparsified_plan_is_refused_rather_than_sent_whole() -> None:
    plan = plan_of([400], reduces([400]), keep=0.01)
    with pytest.raises(BadInput, match=r"1\.000% of gradient values .* leave the pass 'sparsify' out"):
        build(plan, specs([400]), workers=2, hubs=0, lanes=1)
