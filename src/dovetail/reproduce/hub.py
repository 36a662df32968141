"""Parameter Hub (thesis, 2020): tables 2.1, 4.1 and 6.3."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dovetail.network.cost import DEPLOYMENTS, WORKERS_PER_HUB, PriceList, per_thousand
from dovetail.plan import patterns
from dovetail.plan.steps import OFFER, SEND, Route
from dovetail.reproduce.record import Line, Study
from dovetail.simulate.paths import compile_route

WORKERS = 8
TABLE_2_1 = {  # Gbit/s, as printed
    "ResNet 269": (122, 31, 140, 17),
    "Inception": (44, 11, 50, 6),
    "GoogLeNet": (40, 10, 46, 6),
    "AlexNet": (1232, 308, 1408, 176),
}
TABLE_6_1 = {  # MB and seconds a batch
    "ResNet 269": (390, 0.350),
    "Inception": (91, 0.225),
    "GoogLeNet": (38, 0.100),
    "AlexNet": (194, 0.016),
}


def run() -> Study:
    """All three tables."""
    return Study(
        paper="hub",
        lines=(*_table_2_1(), *_table_4_1(), *_table_6_3()),
        assumptions=(
            "table 2.1 does not print model size and batch time; one ratio M/T per model is fitted to its four "
            "entries, the deployments' multiples of it are counted from the routes of 8 workers. Table 6.1's sizes "
            "and times would give "
            + ", ".join(f"{name} {_from_table_6_1(name) / fitted_rate(name) - 1:+.1%}" for name in TABLE_2_1),
            "table 4.1 is checked for 4 racks of 4 nodes; the thesis approximates ring and halving-doubling, "
            "our counts are exact",
            "table 6.3 does not print throughputs, the price of a V100 or of the cheap worker; each is taken from one "
            "entry (lines marked 'given'), the other eight follow from the cost model. They cannot agree with the "
            "print: there, going from 1:1 to 3:1 saves 1.49 times what going to 2:1 saves, but the formula's terms "
            "(F of the upper switches; 44, 65 or 76 workers a hub) allow at most 1.33 times, whatever the prices",
        ),
    )


def host_multiple(deployment: str, workers: int = WORKERS) -> float:
    """Bytes that pass the busiest aggregating host, in and out, per byte of the model: counted, not by formula."""
    if deployment == "CC":
        return _busiest(patterns.routes("shuffle", workers=workers)[:1])
    if deployment == "CS":
        return _busiest(patterns.routes("shuffle", workers=workers))
    servers = workers if deployment == "NCS" else 1
    routes = patterns.routes("hub", workers=workers, hubs=servers)
    return _busiest(routes, among=range(workers, workers + servers))


def fitted_rate(model: str) -> float:
    """Gbit/s of model per batch time for which the worst of the four entries is as near as it can be."""
    ratios = [entry / host_multiple(d) for d, entry in zip(DEPLOYMENTS, TABLE_2_1[model], strict=True)]
    return 2 / (1 / min(ratios) + 1 / max(ratios))


def needed(model: str, deployment: str) -> float:
    """Gbit/s the busiest aggregating host needs to hide all communication."""
    return fitted_rate(model) * host_multiple(deployment)


def _from_table_6_1(model: str) -> float:
    megabytes, seconds = TABLE_6_1[model]
    return megabytes * 8 / 1000 / seconds


def _busiest(routes: list[Route], among: Iterable[int] | None = None) -> float:
    load: Counter[int] = Counter()
    for node, peer in _messages(routes):
        load[node] += 1
        load[peer] += 1
    return max(load[n] for n in (load if among is None else among)) / len(routes)


def _messages(routes: list[Route]) -> Iterable[tuple[int, int]]:
    for route in routes:
        for node, program in route.items():
            for step in program:
                if step.op in (SEND, OFFER):
                    yield from ((node, peer) for peer in step.peers)


def _table_2_1() -> Iterable[Line]:
    for model, entries in TABLE_2_1.items():
        for deployment, entry in zip(DEPLOYMENTS, entries, strict=True):
            ours = needed(model, deployment)
            yield Line(where="table 2.1", what=f"{model} {deployment}", paper=entry, ours=ours, unit="Gbit/s")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one all-reduce of S bytes costs: messages in a row, and multiples of S in all and between racks."""

    rounds: int
    total: float
    across: float


def traffic(pattern: str, *, racks: int, per_rack: int) -> Traffic:
    """Counted from the pattern's routes, nodes numbered rack by rack."""
    groups = [list(range(r * per_rack, (r + 1) * per_rack)) for r in range(racks)]
    routes = patterns.routes(pattern, workers=racks * per_rack, groups=groups)
    messages = list(_messages(routes))
    across = sum(a // per_rack != b // per_rack for a, b in messages)
    rounds = max(m.round for route in routes for moves in compile_route(route).values() for m in moves if m.op == SEND)
    return Traffic(rounds, len(messages) / len(routes), across / len(routes))


def _table_4_1(racks: int = 4, per_rack: int = 4) -> Iterable[Line]:
    nodes = racks * per_rack
    printed = {
        "shuffle": (2, 2 * (nodes - 1), 2 * per_rack * (racks - 1)),
        "halving-doubling": (2 * math.log2(nodes), 2 * nodes, 2 * racks * (per_rack - 1) / per_rack),
        "ring": (2 * nodes - 1, 2 * nodes - 1, 2 * racks - 1),
        "two-level": (4, 2 * (nodes - 1), 2 * (racks - 1)),
    }
    for pattern, (rounds, total, across) in printed.items():
        ours = traffic(pattern, racks=racks, per_rack=per_rack)
        for what, paper, count in (
            ("rounds", rounds, ours.rounds),
            ("bytes on the wire", total, ours.total),
            ("bytes between racks", across, ours.across),
        ):
            unit = "" if what == "rounds" else "S"
            yield Line(where="table 4.1", what=f"{pattern} {what}", paper=paper, ours=count, unit=unit)


# Throughput for each 1000 dollars (section 6.1.10); prices and formulas are network/cost.py's.
COLUMNS = ("Future GPUs", "Spendy", "Cheap")
TABLE_6_3 = {  # throughput per 1000 dollars; None = the sharded baseline
    None: (46.11, 14.57, 60.41),
    1: (55.19, 15.30, 77.21),
    2: (57.71, 15.49, 82.24),
    3: (59.03, 15.58, 84.95),
}


def worker_cost(oversubscription: int | None, prices: PriceList) -> float:
    """Dollars for one worker with its part of the network, and of the hub unless it is the sharded baseline."""
    if oversubscription is None:
        return prices.sharded_worker()
    return prices.hub_worker(oversubscription=oversubscription, workers_per_hub=WORKERS_PER_HUB[oversubscription])


def _table_6_3() -> Iterable[Line]:
    listed = PriceList()
    base = worker_cost(None, listed)
    throughput = {
        None: TABLE_6_3[None][0] * base / 1000,
        "hub": TABLE_6_3[1][0] * worker_cost(1, listed) / 1000,
    }
    spendy = listed.gpu + (throughput[None] * 1000 / TABLE_6_3[None][1] - base) / listed.gpus
    cheap = listed.worker + throughput[None] * 1000 / TABLE_6_3[None][2] - base
    prices = (listed, replace(listed, gpu=spendy), replace(listed, worker=cheap))
    for over, entries in TABLE_6_3.items():
        made = throughput[None if over is None else "hub"]
        for column, paid, entry in zip(COLUMNS, prices, entries, strict=True):
            given = " (given)" if over is None or (over == 1 and column == COLUMNS[0]) else ""
            name = "sharded" if over is None else f"hub {over}:1"
            ours = per_thousand(made, worker_cost(over, paid))
            yield Line(where="table 6.3", what=f"{name}, {column}{given}", paper=entry, ours=ours, unit="per $1000")
