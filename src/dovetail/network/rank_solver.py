"""The last stage of the rank search: CP-SAT finds an order better than the best one known, or proves there is none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from dovetail.network.collective import Floats, Prices, algorithm_name, rounds, tree_levels

SCALE = 100_000  # the dearest pair in the solver's whole numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`order` is better than what the solver was given, or None; `proven` says that nothing better exists."""

    order: list[int] | None
    proven: bool


def improve(
    prices: Prices, best: list[int], *, algorithm: str, size: float, base: int, time_limit: float, seed: int
) -> Verdict:
    """Solve for an order of less cost than `best` within `time_limit` seconds."""
    name = algorithm_name(algorithm)
    scale = SCALE / max(float(prices.at(size).max()), 1e-300)
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 2
    solver.parameters.linearization_level = 2
    solver.parameters.max_time_in_seconds = time_limit
    if name in ("ring", "ring-bottleneck"):
        return _ring(_whole(prices.at(size), scale), best, solver, bottleneck=name == "ring-bottleneck")
    return _general(prices, best, solver, name, size, base, scale)


def _whole(cost: Floats, scale: float) -> np.ndarray:
    return np.rint(cost * scale).astype(np.int64)


def _verdict(status: object, order: list[int] | None) -> Verdict:
    return Verdict(order=order, proven=status in (cp_model.OPTIMAL, cp_model.INFEASIBLE))


def _ring(cost: np.ndarray, best: list[int], solver: cp_model.CpSolver, *, bottleneck: bool) -> Verdict:
    """A circuit through all nodes: of less total cost, or of hops that are all cheaper than the dearest now."""
    count = len(best)
    hops = [int(v) for v in cost[best, np.roll(best, -1)]]
    model = cp_model.CpModel()
    arcs = {
        (i, j): model.new_bool_var("")
        for i in range(count)
        for j in range(count)
        if i != j and (not bottleneck or cost[i, j] < max(hops))
    }
    model.add_circuit([(i, j, used) for (i, j), used in arcs.items()])
    measure = model.new_int_var(0, max(hops) if bottleneck else sum(hops), "cost")
    if bottleneck:
        for (i, j), used in arcs.items():
            model.add(measure >= int(cost[i, j])).only_enforce_if(used)
    else:
        model.add(measure == sum(int(cost[arc]) * used for arc, used in arcs.items()))
        model.add(measure < sum(hops))
    model.minimize(measure)
    if any(all((i, j) not in arcs for j in range(count)) for i in range(count)):
        return Verdict(order=None, proven=True)  # a node has no cheap neighbour: the dearest hop cannot be avoided
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return _verdict(status, None)
    following = {i: j for (i, j), used in arcs.items() if solver.value(used)}
    order = [best[0]]
    while len(order) < count:
        order.append(following[order[-1]])
    return _verdict(status, order)


def _general(
    prices: Prices, best: list[int], solver: cp_model.CpSolver, name: str, size: float, base: int, scale: float
) -> Verdict:
    """Ranks as variables, and the cost of a pair of ranks as an element of the flattened matrix."""
    count, top = prices.count, SCALE * 2 * prices.count
    model = cp_model.CpModel()
    node_of = [model.new_int_var(0, count - 1, f"rank {r}") for r in range(count)]
    model.add_all_different(node_of)
    measure = model.new_int_var(0, top, "cost")
    tables: dict[float, list[int]] = {}

    def price(a: int, b: int, share: float) -> cp_model.IntVar:
        if share not in tables:
            tables[share] = [int(v) for v in _whole(prices.at(size * share), scale).ravel()]
        value = model.new_int_var(0, SCALE, "")
        model.add_element(node_of[a] * count + node_of[b], tables[share], value)
        return value

    if name == "tree":
        for shift in (0, 1):
            reach = [model.new_int_var(0, top, "") for _ in range(count)]
            for parents, children in tree_levels(count):
                for above, below in zip(parents.tolist(), children.tolist(), strict=True):
                    hop = price((above - shift) % count, (below - shift) % count, 0.5)
                    model.add(reach[above] >= reach[below] + hop)
            model.add(measure >= reach[(count - 1) // 2])
    else:
        worst = []
        for pairs, share in rounds(count, base=2 if name == "halving-doubling" else base):
            slowest = model.new_int_var(0, SCALE, "")
            model.add_max_equality(slowest, [price(a, b, share) for a, b in pairs])
            worst.append(slowest)
        model.add(measure == sum(worst))
    # The best order is priced by the solver itself, in its own whole numbers, before it is asked for less.
    known = model.clone()
    for rank, node in enumerate(best):
        known.add(known.get_int_var_from_proto_index(node_of[rank].index) == node)
        model.add_hint(node_of[rank], node)
    known.minimize(known.get_int_var_from_proto_index(measure.index))
    if solver.solve(known) != cp_model.OPTIMAL:
        return Verdict(order=None, proven=False)
    model.add(measure < round(solver.objective_value))
    model.minimize(measure)
    status = solver.solve(model)
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return _verdict(status, [solver.value(v) for v in node_of] if solved else None)
