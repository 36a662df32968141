"""The traced model as data: Op, Param, Profile."""

from __future__ import annotations

import hashlib
import heapq
import math
from dataclasses import dataclass
from functools import cached_property

from dovetail.errors import BadInput


@dataclass(frozen=True, slots=True)
class Op:
    """One computation; `reads` are parameters it needs, `produces` the parameter whose gradient it completes."""

    name: str
    time: float  # seconds
    inputs: tuple[str, ...] = ()  # op names
    reads: tuple[str, ...] = ()  # parameter names
    produces: str | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter tensor by name and size."""

    name: str
    nbytes: int
    itemsize: int = 4  # bytes of one element: slices never cut an element in two


@dataclass(frozen=True)
class Profile:
    """One iteration of training on one worker; ops are kept in a topological order."""

    ops: tuple[Op, ...]
    params: tuple[Param, ...]
    name: str = ""
    measured_time: float | None = None  # seconds of a whole measured iteration, if there was one

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "params", tuple(self.params))
        _check_params(self.params)
        _check_ops(self.ops, {p.name for p in self.params})
        object.__setattr__(self, "ops", _topological(self.ops))

    @cached_property
    def op_index(self) -> dict[str, int]:
        return {op.name: i for i, op in enumerate(self.ops)}

    @cached_property
    def param_index(self) -> dict[str, int]:
        return {p.name: i for i, p in enumerate(self.params)}

    @cached_property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.params)

    @cached_property
    def compute_time(self) -> float:
        """C: the sum of all op times."""
        return sum(op.time for op in self.ops)

    @cached_property
    def backward_start(self) -> int:
        """Index of the first op that has completed or helps to complete a gradient only: ops before it are forward."""
        last_read = max((i for i, op in enumerate(self.ops) if op.reads), default=-1)
        first_made = min((i for i, op in enumerate(self.ops) if op.produces), default=len(self.ops))
        return min(first_made, last_read + 1) if first_made <= last_read else last_read + 1

    @cached_property
    def first_use(self) -> dict[str, int]:
        """Parameter name -> rank in the order of first use in the forward pass; never-read ones come last."""
        order: dict[str, int] = {}
        for op in self.ops:
            for name in op.reads:
                order.setdefault(name, len(order))
        for param in self.params:
            order.setdefault(param.name, len(order))
        return order

    @cached_property
    def production(self) -> dict[str, int]:
        """Parameter name -> rank in the order in which gradients are completed; never-completed ones come last."""
        order: dict[str, int] = {}
        for op in self.ops:
            if op.produces is not None:
                order[op.produces] = len(order)
        for param in self.params:
            order.setdefault(param.name, len(order))
        return order

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the parameters, so that a plan for another model is recognised."""
        text = "\n".join(f"{p.name} {p.nbytes}" for p in self.params)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_params(params: tuple[Param, ...]) -> None:
    seen: set[str] = set()
    for p in params:
        if p.name in seen:
            raise BadInput(f"parameter {p.name!r} is listed twice in the profile")
        if p.nbytes < 0:
            raise BadInput(f"parameter {p.name!r} has the size {p.nbytes} bytes; sizes are 0 or more")
        seen.add(p.name)


def _check_ops(ops: tuple[Op, ...], params: set[str]) -> None:
    names: set[str] = set()
    made: dict[str, str] = {}
    for op in ops:
        if op.name in names:
            raise BadInput(f"op {op.name!r} is listed twice in the profile")
        if not (op.time >= 0 and math.isfinite(op.time)):
            raise BadInput(f"op {op.name!r} has the time {op.time!r} s; times are finite and 0 or more")
        names.add(op.name)
        for read in op.reads:
            if read not in params:
                raise BadInput(f"op {op.name!r} reads the unknown parameter {read!r}; add it to the profile's params")
        if op.produces is not None:
            if op.produces not in params:
                raise BadInput(f"op {op.name!r} produces the gradient of the unknown parameter {op.produces!r}")
            if op.produces in made:
                raise BadInput(
                    f"ops {made[op.produces]!r} and {op.name!r} both complete the gradient of {op.produces!r}"
                )
            made[op.produces] = op.name
    for op in ops:
        for name in op.inputs:
            if name not in names:
                raise BadInput(f"op {op.name!r} has the unknown input {name!r}; inputs are names of ops in the profile")


def _topological(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The given order where it is topological already, else the nearest that is."""
    index = {op.name: i for i, op in enumerate(ops)}
    waiting = [len(set(op.inputs)) for op in ops]
    users: list[list[int]] = [[] for _ in ops]
    for i, op in enumerate(ops):
        for name in set(op.inputs):
            users[index[name]].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[Op] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(ops[i])
        for user in users[i]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(ops):
        stuck = [op.name for op, count in zip(ops, waiting, strict=True) if count > 0]
        raise BadInput(f"the profile has a cycle through {', '.join(map(repr, stuck[:4]))}; ops must form a DAG")
    return tuple(order)
