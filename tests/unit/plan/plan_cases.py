"""Small random models and clusters for the planner's property tests."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from dovetail.network.model import Cluster, Link
from dovetail.trace.graph import Op, Param, Profile

LINK = Link(startup=1.0, bandwidth=1.0)


def random_profile(seed: int, *, params: int = 5, ops: int = 7) -> Profile:
    """A forward DAG that reads parameters and a backward DAG that completes gradients; whole seconds, many ties."""
    rng = random.Random(seed)
    names = [f"p{i}" for i in range(rng.randint(1, params))]
    made: list[Op] = []
    for i in range(rng.randint(1, ops)):
        inputs = tuple(op.name for op in made if rng.random() < 0.35)
        reads = tuple(n for n in names if rng.random() < 0.3)
        made.append(Op(f"f{i}", float(rng.randint(0, 4)), inputs, reads))
    forward = [op.name for op in made]
    backward: list[str] = []
    todo = [n for n in names if rng.random() < 0.9]
    rng.shuffle(todo)
    for i in range(rng.randint(len(todo), len(todo) + 4)):
        inputs = (*(n for n in forward if rng.random() < 0.4), *(n for n in backward if rng.random() < 0.4))
        produces = todo.pop() if todo and rng.random() < 0.7 else None
        made.append(Op(f"b{i}", float(rng.randint(0, 4)), inputs, (), produces))
        backward.append(f"b{i}")
    for i, name in enumerate(todo):
        made.append(Op(f"g{i}", float(rng.randint(0, 4)), (rng.choice(forward),), (), name))
    sizes = (0, 1, 2, 3, 5, 8, 40, 400)
    return Profile(tuple(made), tuple(Param(n, rng.choice(sizes), rng.choice((1, 2, 4))) for n in names))


def random_cluster(seed: int) -> Cluster:
    """Uniform, racked or with hubs; sometimes a single worker."""
    rng = random.Random(seed)
    link = Link(startup=rng.choice((0.0, 0.5, 1.0, 7.0)), bandwidth=rng.choice((1.0, 10.0, 1000.0)))
    if rng.random() < 0.3:
        return Cluster.racked(racks=rng.randint(1, 3), per_rack=rng.randint(1, 3), link=link, oversubscription=2.0)
    return Cluster.uniform(workers=rng.randint(1, 5), link=link, hubs=rng.choice((0, 0, 1, 2)))


def chain(layers: list[tuple[int, float, float]]) -> Profile:
    """A plain network of (bytes, forward time, backward time) layers `l0`, `l1`, ..."""
    ops: list[Op] = []
    for i, (_, forward, _) in enumerate(layers):
        ops.append(Op(f"f{i}", forward, (ops[-1].name,) if ops else (), (f"l{i}",)))
    for i in reversed(range(len(layers))):
        ops.append(Op(f"b{i}", layers[i][2], (ops[-1].name,), (), f"l{i}"))
    return Profile(tuple(ops), tuple(Param(f"l{i}", nbytes) for i, (nbytes, _, _) in enumerate(layers)))


seeds = st.integers(0, 2**32 - 1)
