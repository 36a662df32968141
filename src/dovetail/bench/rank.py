"""`bench rank`: what probing knows of a network, and what the order of ranks does to unmodified Gloo on it."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from dovetail.bench.orders import RingOrder, RingReply
from dovetail.bench.probing import probe, probing_crew
from dovetail.bench.result import RankedOrder, RankResult, Times
from dovetail.bench.stage import Site, Tell, built
from dovetail.errors import BadInput
from dovetail.network.collective import Model, Prices, cost_model
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.rank_order import rank_order
from dovetail.network.rank_search import EXHAUSTIVE, best_of_all, local_search
from dovetail.network.uplinks import without_chance

RING = "ring"  # what Gloo's all-reduce is
COMPARED = 10  # orders whose predictions are held against the clock
KICKS = 20


def bench_rank(
    site: Site, *, nbytes: int, orders: int, times: int, seed: int = 0, tell: Tell = lambda _: None
) -> RankResult:
    """Probe, group and rank the hosts; then time Gloo in the best, the worst, the given and random orders."""
    if site.workers < 3 or nbytes < 4 or orders < 1 or times < 1:
        raise BadInput(
            f"{orders} orders of {site.workers} hosts, {times} sums of {nbytes} bytes; "
            "give 3 hosts, 1 order, 1 sum and 4 bytes or more"
        )
    with built(site, hubs=0, tell=tell) as stage:
        if stage.limit:
            raise BadInput(f"the order of ranks shows on a shaped network alone; {stage.notes[0]}")
        with probing_crew(stage, number=0) as crew:
            tell("probing")
            probed = probe(crew, stage)
            matrix = without_chance(probed.matrix)
            model = cost_model(Prices(matrix), algorithm=RING, size=nbytes)
            rows = []
            for name, hosts in chosen_orders(matrix, model, nbytes=nbytes, orders=orders, seed=seed):
                tell(f"{name}: {' '.join(map(str, hosts))}")
                replies = crew.ask(RingOrder(hosts=tuple(hosts), nbytes=nbytes // 4 * 4, times=times), RingReply)
                slowest = [max(both) for both in zip(*(r.seconds for r in replies), strict=True)]
                predicted = float(model(np.array([hosts], dtype=np.intp))[0][0])
                rows.append(RankedOrder(name=name, hosts=tuple(hosts), predicted_s=predicted, sum_s=Times.of(slowest)))
    return RankResult(
        bench="rank",
        workers=site.workers,
        rate=site.rate,
        uplink=site.uplink,
        measured_rate=stage.measured,
        nbytes=nbytes,
        racks=stage.network(site.workers).racks,
        groups=probed.groups,
        racks_found=probed.exact,
        orders=tuple(rows),
        spearman=correlation(compared(rows)),
        spearman_all=correlation(rows),
        notes=stage.notes,
    )


def chosen_orders(
    matrix: ProbeMatrix, model: Model, *, nbytes: int, orders: int, seed: int
) -> list[tuple[str, list[int]]]:
    """The best and the worst by prediction, the given one, and so many random ones."""
    count = len(matrix.hosts)
    rng = np.random.default_rng(seed)
    fixed = [
        ("best", rank_order(matrix, RING, size=nbytes)),
        ("worst", worst_order(model, count, seed)),
        ("given", list(range(count))),
    ]
    return fixed + [("random", [int(node) for node in rng.permutation(count)]) for _ in range(orders)]


def worst_order(model: Model, count: int, seed: int) -> list[int]:
    """The dearest order: of all when they are few, else by search."""

    def inverted(orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        costs, fines = model(orders)
        # Positive, since the search compares by ratios.
        return 1.0 / costs, 1.0 / fines

    if count <= EXHAUSTIVE:
        return best_of_all(inverted, count)
    rng = np.random.default_rng(seed)
    return local_search(inverted, list(range(count)), rng=rng, kicks=KICKS, expired=lambda: False)


def compared(rows: list[RankedOrder]) -> list[RankedOrder]:
    """Ten orders from the cheapest to the dearest by prediction, evenly spaced among all."""
    by_price = sorted(rows, key=lambda row: row.predicted_s)
    picked = np.linspace(0, len(by_price) - 1, min(COMPARED, len(by_price))).round().astype(int)
    return [by_price[i] for i in picked]


def correlation(rows: list[RankedOrder]) -> float:
    """Spearman's, between predicted and measured times."""
    return float(spearmanr([row.predicted_s for row in rows], [row.sum_s.median for row in rows]).statistic)
