"""The chunk table: which bytes follow which route over which lane, the same on every node of a job."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dovetail.errors import BadInput
from dovetail.plan.partition import spread
from dovetail.plan.patterns import Groups, check_shares, weights_of
from dovetail.plan.patterns import routes as routes_of
from dovetail.plan.schedule import FORWARD, PULL, PUSH, Plan
from dovetail.plan.steps import ADD, ASK, COPY, DELIVER, FINISH, OFFER, OPS, SEND, Route, Step, check_route
from dovetail.plan.verify import check_dense

Ints = npt.NDArray[np.int64]
DTYPES = {"f32": (0, 4), "f64": (1, 8), "bf16": (2, 2), "f16": (3, 2)}  # name -> (native code, bytes an element)
OP_CODES = {op: code for code, op in enumerate(OPS)}
MAX_CHUNK = 64 << 20  # bytes; the longest frame
MAX_ENCODED = 1 << 30  # bytes of an unpacked table that a hub accepts from a client

# Columns of `Table.rows`; `for_node` replaces the route by the node's own program.
TENSOR, OFFSET, NBYTES, ROUTE, LANE, PUSH_PRIORITY, PULL_PRIORITY, PUSH_TRANSFER, PULL_WINDOW = range(9)
COLUMNS = 9

REDUCED, PULLED, PULLED_LATE = range(3)  # how a chunk's result comes back: by itself, when asked, after backward


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor whose gradients are summed; `group` is its optimizer parameter group."""

    name: str
    nbytes: int
    dtype: str = "f32"
    group: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise BadInput(f"tensor {self.name!r} has the type {self.dtype!r}; the engine sums {', '.join(DTYPES)}")
        if self.nbytes < 0 or self.nbytes % DTYPES[self.dtype][1]:
            raise BadInput(f"tensor {self.name!r} has {self.nbytes} bytes, which is no whole number of {self.dtype}")


@dataclass(frozen=True, slots=True)
class NodeTable:
    """One node's view of a table, in the form and order that the native `Job.table` takes."""

    programs: list[list[tuple[int, list[int]]]]
    tensors: list[tuple[int, int, int]]
    chunks: Ints
    transfers: list[list[int]]
    windows: list[int]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Every chunk of a job with its route, lane and priorities; frozen, equal on every node."""

    workers: int
    hubs: int
    lanes: int
    tensors: tuple[TensorSpec, ...]
    routes: tuple[Route, ...]
    transfers: tuple[tuple[int, ...], ...]  # tensors of each push or reduce; empty ones never travel
    windows: tuple[int, ...]  # per transfer: 0 = backward, 1 = forward
    chunks: bytes  # little-endian int64, COLUMNS to a row, by tensor and offset

    @cached_property
    def rows(self) -> Ints:
        """The chunks as an array of shape [n, COLUMNS]; read-only."""
        return np.frombuffer(self.chunks, dtype="<i8").reshape(-1, COLUMNS)

    @property
    def nodes(self) -> int:
        return self.workers + self.hubs

    def peers(self, node: int) -> tuple[int, ...]:
        """The nodes it exchanges anything with, in order."""
        found = {
            b if a == node else a
            for route in self.routes
            for a, program in route.items()
            for step in program
            for b in step.peers
            if node in (a, b)
        }
        return tuple(sorted(found - {node}))

    def for_guest(self) -> NodeTable:
        """What the native job of a client is given that only reads the roots' copies."""
        reading: list[Route] = []
        for route in self.routes:
            root = next(n for n, program in route.items() if any(s.op == FINISH for s in program))
            reading.append({self.nodes: (Step(SEND, (root,)), Step(DELIVER))})
        return replace(self, routes=tuple(reading)).for_node(self.nodes)

    def roots(self) -> tuple[int, ...]:
        """The nodes where sums are completed, in order."""
        found = {n for route in self.routes for n, program in route.items() if any(s.op == FINISH for s in program)}
        return tuple(sorted(found))

    def for_node(self, node: int) -> NodeTable:
        """What the node's native job is given."""
        programs: list[list[tuple[int, list[int]]]] = []
        own = np.full(len(self.routes), -1, dtype=np.int64)
        for index, route in enumerate(self.routes):
            if node in route:
                own[index] = len(programs)
                programs.append([(OP_CODES[step.op], list(step.peers)) for step in route[node]])
        chunks = self.rows.copy()
        chunks[:, ROUTE] = own[chunks[:, ROUTE]]
        return NodeTable(
            programs=programs,
            tensors=[(t.nbytes, DTYPES[t.dtype][0], t.group) for t in self.tensors],
            chunks=chunks,
            transfers=[list(t) for t in self.transfers],
            windows=list(self.windows),
        )

    @cached_property
    def digest(self) -> str:
        """Equal for equal tables."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()


def encode(table: Table) -> bytes:
    """The table as packed bytes, a few per chunk."""
    return zlib.compress(msgspec.msgpack.encode(table), 1)


def decode(packed: bytes) -> Table:
    """The table that `encode` packed; BadInput when the bytes are not one or it does not hold together."""
    try:
        unpack = zlib.decompressobj()
        data = unpack.decompress(packed, MAX_ENCODED)
        if not unpack.eof:
            raise BadInput(f"a chunk table of more than {MAX_ENCODED} bytes")
        table = msgspec.msgpack.decode(data, type=Table)
    except (zlib.error, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadInput(f"not a chunk table: {error}") from None
    _check(table)
    return table


def build(
    plan: Plan,
    tensors: Sequence[TensorSpec],
    *,
    workers: int,
    hubs: int,
    lanes: int,
    chunk_bytes: int | None = None,
    groups: Groups | None = None,
    shares: Sequence[float] | None = None,
) -> Table:
    """Cut the plan into chunks (of the plan's size, or `chunk_bytes`) and spread them over routes and lanes.

    `groups` are the racks of the patterns that know racks; `shares` is how much of the masters' work each worker gets.
    """
    if shares is not None:
        check_shares(plan.aggregation, shares, workers)
    if workers < 1 or hubs < 0 or lanes < 1:
        raise BadInput(f"a job of {workers} workers, {hubs} hubs and {lanes} lanes; one is too few")
    check_dense(plan)
    _check_same(plan, tensors)
    size = chunk_bytes or plan.chunk_bytes
    if not 64 <= size <= MAX_CHUNK:
        raise BadInput(f"chunks of {size} bytes; give 64 to {MAX_CHUNK}")
    rows, modes = _cut(plan, tensors, size)
    routes: list[Route] = []
    for mode in sorted(set(modes.tolist())) or [REDUCED]:
        variant = _variant(plan.aggregation, mode, workers=workers, hubs=hubs, groups=groups, shares=shares)
        rows[modes == mode, ROUTE] = len(routes)
        routes += variant
    _assign(rows, len(variant), lanes, weights_of(variant, plan.aggregation, shares))
    index = {t.name: i for i, t in enumerate(tensors)}
    sizes = {t.name: t.nbytes for t in tensors}
    outgoing = [t for t in plan.transfers if t.kind != PULL]
    return Table(
        workers=workers,
        hubs=hubs,
        lanes=lanes,
        tensors=tuple(tensors),
        routes=tuple(routes),
        transfers=tuple(tuple(index[name] for name in t.params if sizes[name]) for t in outgoing),
        windows=tuple(int(t.window == FORWARD) for t in outgoing),
        chunks=rows.astype("<i8").tobytes(),
    )


def _variant(
    aggregation: str,
    mode: int,
    *,
    workers: int,
    hubs: int,
    groups: Groups | None,
    shares: Sequence[float] | None,
) -> list[Route]:
    """The pattern's routes for chunks that come back by themselves, when pulled, or when the backward pass is over."""
    if mode == REDUCED:
        return routes_of(aggregation, workers=workers, hubs=hubs, groups=groups, shares=shares)
    if aggregation == "hub" or (aggregation == "shuffle" and mode == PULLED):
        return routes_of(aggregation, workers=workers, hubs=hubs, on_request=True)
    if mode == PULLED:
        return routes_of(aggregation, workers=workers, hubs=hubs, groups=groups, shares=shares)
    if aggregation == "rack-hubs":
        # A hub has no backward pass of its own that could open a gate.
        raise BadInput(
            "aggregation 'rack-hubs' cannot hold results back until the forward pass; use 'hub' or 'shuffle'"
        )
    return routes_of(aggregation, workers=workers, hubs=hubs, groups=groups, shares=shares, split=True)


def _check_same(plan: Plan, tensors: Sequence[TensorSpec]) -> None:
    sizes = {p.name: p.nbytes for p in plan.params}
    seen: set[str] = set()
    for t in tensors:
        if t.name in seen:
            raise BadInput(f"tensor {t.name!r} is given twice")
        seen.add(t.name)
        if sizes.get(t.name) != t.nbytes:
            has = f"{sizes[t.name]} bytes" if t.name in sizes else "no such parameter"
            raise BadInput(f"tensor {t.name!r} has {t.nbytes} bytes, but the plan has {has}; plan for this model anew")
    if len(seen) < len(sizes):
        raise BadInput(f"the plan moves {min(set(sizes) - seen)!r}, which is not among the tensors; plan anew")


def _cut(plan: Plan, tensors: Sequence[TensorSpec], chunk_bytes: int) -> tuple[Ints, Ints]:
    """Rows without route and lane, by tensor and offset, and how each comes back (REDUCED, PULLED, PULLED_LATE)."""
    outgoing = [t for t in plan.transfers if t.kind != PULL]
    incoming = [t for t in plan.transfers if t.kind != PUSH]
    sizes = np.array([t.nbytes for t in tensors], dtype=np.int64)
    stride = int(sizes.max(initial=0)) + 1  # one sortable key for (tensor, offset)
    push_keys, push_of = _starts(outgoing, tensors, stride)
    pull_keys, pull_of = _starts(incoming, tensors, stride)
    keys = np.union1d(push_keys, pull_keys)
    tensor, start = keys // stride, keys % stride
    follows = np.append(tensor[1:] == tensor[:-1], False) if len(keys) else np.zeros(0, dtype=bool)
    end = np.where(follows, np.append(start[1:], 0), sizes[tensor])
    push = push_of[np.searchsorted(push_keys, keys, side="right") - 1]
    pull = pull_of[np.searchsorted(pull_keys, keys, side="right") - 1]

    items = np.array([DTYPES[t.dtype][1] for t in tensors], dtype=np.int64)
    most = np.array([t.chunk_bytes(chunk_bytes) for t in outgoing], dtype=np.int64)
    item = items[tensor]
    counts = -(-(end - start) // (most[push] // item * item))
    step = -(-(end - start) // (counts * item)) * item  # equal ones: a small rest would make some links' shares uneven
    segment = np.repeat(np.arange(len(keys)), counts)
    nth = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = start[segment] + nth * step[segment]

    rows = np.zeros((len(segment), COLUMNS), dtype=np.int64)
    rows[:, TENSOR] = tensor[segment]
    rows[:, OFFSET] = offset
    rows[:, NBYTES] = np.minimum(step[segment], end[segment] - offset)
    rows[:, PUSH_TRANSFER] = push[segment]
    rows[:, PUSH_PRIORITY] = np.array([t.priority for t in outgoing], dtype=np.int64)[push[segment]]
    rows[:, PULL_PRIORITY] = np.array([t.priority for t in incoming], dtype=np.int64)[pull[segment]]
    separate = np.array([t.kind == PULL for t in incoming], dtype=bool)[pull[segment]]
    late = np.array([t.window == FORWARD for t in incoming], dtype=bool)[pull[segment]]
    rows[:, PULL_WINDOW] = late & separate
    return rows, np.where(separate, np.where(late, PULLED_LATE, PULLED), REDUCED)


def _starts(transfers: Sequence[Any], tensors: Sequence[TensorSpec], stride: int) -> tuple[Ints, Ints]:
    """Sorted keys of where parts begin, and the transfer of each; borders are moved back to whole elements."""
    index = {t.name: i for i, t in enumerate(tensors)}
    items = [DTYPES[t.dtype][1] for t in tensors]
    found: list[tuple[int, int]] = []
    for number, transfer in enumerate(transfers):
        for name, offset, nbytes in transfer.parts:
            i = index[name]
            start, end = offset - offset % items[i], offset + nbytes - (offset + nbytes) % items[i]
            if end > start:
                found.append((i * stride + start, number))
    pairs = np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _assign(rows: Ints, routes: int, lanes: int, weights: Sequence[float] | None) -> None:
    """Add the route to the first one of its kind, and fill the lane; routes carry bytes in proportion to `weights`.

    Equal chunks that follow each other in urgency alternate, so that all links are busy.
    """
    order = np.lexsort((rows[:, OFFSET], rows[:, TENSOR], rows[:, PUSH_PRIORITY]))
    chosen = np.zeros(len(rows), dtype=np.int64)
    chosen[order] = spread(rows[order, NBYTES].tolist(), bins=routes, weights=weights)
    rows[:, ROUTE] += chosen
    for route in range(routes):
        mine = order[chosen[order] == route]
        lane = np.array(spread(rows[mine, NBYTES].tolist(), bins=lanes), dtype=np.int64)
        rows[mine, LANE] = (lane + route) % lanes  # routes with one chunk each must not all meet on lane 0


_NO_PEERS = (0).__eq__
_PEERS = {ADD: (0).__lt__, SEND: (0).__lt__, OFFER: (0).__lt__, COPY: (1).__eq__, ASK: (1).__eq__}


def _check(table: Table) -> None:
    """Raise unless every number in a table from outside points at something."""
    if len(table.chunks) % (8 * COLUMNS) or len(table.windows) != len(table.transfers):
        raise BadInput("a chunk table of broken length")
    if table.workers < 1 or table.hubs < 0 or table.lanes < 1:
        raise BadInput("a chunk table without workers or lanes")
    for route in table.routes:
        for node, program in route.items():
            for step in program:
                if step.op not in OP_CODES or not all(0 <= n < table.nodes for n in (node, *step.peers)):
                    raise BadInput(f"a chunk table with the step {step} at node {node} of {table.nodes}")
        if not all(route.values()):
            raise BadInput("a chunk table with an empty program")
        for program in route.values():
            for step in program:
                if not _PEERS.get(step.op, _NO_PEERS)(len(step.peers)):
                    raise BadInput(f"a chunk table with {len(step.peers)} peers in a {step.op} step")
        check_route(route)
    if any(not 0 <= i < len(table.tensors) for t in table.transfers for i in t):
        raise BadInput("a chunk table with a transfer of an unknown tensor")
    rows = table.rows
    limits = {
        TENSOR: len(table.tensors),
        ROUTE: len(table.routes),
        LANE: table.lanes,
        PUSH_TRANSFER: len(table.transfers),
        PULL_WINDOW: 2,
    }
    for column, limit in limits.items():
        if ((rows[:, column] < 0) | (rows[:, column] >= limit)).any():
            raise BadInput(f"a chunk table with a value out of range in column {column}")
    sizes = np.array([t.nbytes for t in table.tensors], dtype=np.int64)
    items = np.array([DTYPES[t.dtype][1] for t in table.tensors], dtype=np.int64)
    tensor, offset, nbytes = rows[:, TENSOR], rows[:, OFFSET], rows[:, NBYTES]
    outside = (
        (offset < 0)
        | (nbytes <= 0)
        | (nbytes > np.minimum(sizes[tensor], MAX_CHUNK))
        | (offset > sizes[tensor] - nbytes)
    )
    if (outside | (offset % items[tensor] != 0) | (nbytes % items[tensor] != 0)).any():
        raise BadInput("a chunk table with a chunk outside its tensor")
