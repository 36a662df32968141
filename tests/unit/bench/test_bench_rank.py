"""Which orders `bench rank` times, and how it compares prediction with the clock; no sockets."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from dovetail.bench.rank import bench_rank, chosen_orders, compared, correlation, worst_order
from dovetail.bench.result import RankedOrder, RankResult, Times
from dovetail.bench.show import rank_table
from dovetail.bench.stage import Site
from dovetail.errors import BadInput
from dovetail.network.collective import Prices, collective_cost, cost_model
from dovetail.network.matrix import ProbeMatrix


def two_racks(count: int) -> ProbeMatrix:
    home = np.arange(count) % 2
    rng = np.random.default_rng(0)
    latency = np.where(home[:, None] == home[None], 1e-5, 1e-4) * rng.uniform(1, 1.1, (count, count))
    return ProbeMatrix.from_arrays([str(i) for i in range(count)], latency)


def row(name: str, predicted: float, measured: float) -> RankedOrder:
    return RankedOrder(name=name, hosts=(0, 1, 2), predicted_s=predicted, sum_s=Times.of([measured]))


def test_best_and_worst_are_those_of_all_orders() -> None:
    matrix = two_racks(6)
    model = cost_model(Prices(matrix), algorithm="ring", size=0)
    prices = [collective_cost(matrix, order) for order in itertools.permutations(range(6))]
    orders = chosen_orders(matrix, model, nbytes=4, orders=5, seed=1)
    assert [name for name, _ in orders] == ["best", "worst", "given", *["random"] * 5]
    assert collective_cost(matrix, orders[0][1]) == pytest.approx(min(prices))
    assert collective_cost(matrix, orders[1][1]) == pytest.approx(max(prices))
    assert orders == chosen_orders(matrix, model, nbytes=4, orders=5, seed=1)


def test_the_worst_of_many_hosts_is_searched() -> None:
    matrix = two_racks(12)
    model = cost_model(Prices(matrix), algorithm="ring", size=0)
    order = worst_order(model, 12, seed=0)
    assert sorted(order) == list(range(12))
    assert all(a % 2 != b % 2 for a, b in itertools.pairwise([*order, order[0]])), "every hop crosses"


def test_ten_orders_from_the_cheapest_to_the_dearest() -> None:
    rows = [row("random", float(p), 1.0) for p in np.random.default_rng(0).permutation(23)]
    picked = [r.predicted_s for r in compared(rows)]
    assert len(picked) == 10
    assert picked == sorted(picked)
    assert (picked[0], picked[-1]) == (0, 22)
    assert len(compared(rows[:4])) == 4


def test_correlation_is_of_ranks() -> None:
    assert correlation([row("", p, m) for p, m in ((1, 10), (2, 1000), (3, 1001))]) == pytest.approx(1.0)
    assert correlation([row("", p, -m) for p, m in ((1, 10), (2, 1000), (3, 1001))]) == pytest.approx(-1.0)


def test_the_table_says_whether_racks_were_found_and_what_order_brings() -> None:
    rows = (
        row("best", 1, 1.0),
        row("worst", 4, 4.0),
        row("given", 2, 2.0),
        row("random", 2, 2.0),
        row("random", 3, 3.0),
    )
    result = RankResult(
        bench="rank",
        workers=3,
        rate=1e6,
        uplink=1e6,
        measured_rate=1e6,
        nbytes=4,
        racks=(0, 1, 0),
        groups=((0, 2), (1,)),
        racks_found=True,
        orders=rows,
        spearman=0.9,
        spearman_all=1.0,
    )
    text = io.StringIO()
    Console(file=text, width=120).print(rank_table(result))
    assert "0 2 | 1 (the racks exactly)" in text.getvalue()
    assert "best is 4.00x as fast as worst, 2.50x as the median of random" in text.getvalue()


def test_bad_input() -> None:
    with pytest.raises(BadInput, match="3 hosts"):
        bench_rank(Site(workers=2, rate=1e6), nbytes=4, orders=1, times=1)
