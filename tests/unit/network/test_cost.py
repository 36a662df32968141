"""The thesis's tables follow from the formulas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.cli.main import run as dovetail
from dovetail.engine.reference import run
from dovetail.errors import BadInput
from dovetail.network.cost import (
    DEPLOYMENTS,
    WORKERS_PER_HUB,
    PriceList,
    hierarchy,
    host_bandwidth,
    host_multiple,
    per_thousand,
)
from dovetail.plan.patterns import routes

TABLE_2_1 = {  # Gbit/s with 8 workers
    "ResNet 269": (122, 31, 140, 17),
    "Inception": (44, 11, 50, 6),
    "GoogLeNet": (40, 10, 46, 6),
    "AlexNet": (1232, 308, 1408, 176),
}
TABLE_6_3 = {
    "sharded": (46.11, 14.57, 60.41),
    1: (55.19, 15.30, 77.21),
    2: (57.71, 15.49, 82.24),
    3: (59.03, 15.58, 84.95),
}


@pytest.mark.parametrize("name", TABLE_2_1)
def test_table_2_1(name: str) -> None:
    # The table does not print M/T; NCC, its largest entry, is 16 M/T. Small entries are printed as whole numbers.
    rate = TABLE_2_1[name][2] / 16
    for deployment, printed in zip(DEPLOYMENTS, TABLE_2_1[name], strict=True):
        needed = host_bandwidth(model_bytes=rate, iteration=1.0, workers=8, deployment=deployment)
        assert abs(needed - printed) <= max(0.03 * printed, 0.5)


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
def test_multiples_are_what_the_routes_move(workers: int) -> None:
    cases = {
        "CC": (routes("shuffle", workers=workers)[:1], 0),
        "CS": (routes("shuffle", workers=workers), 0),
        "NCC": (routes("hub", workers=workers, hubs=1), workers),
        "NCS": (routes("hub", workers=workers, hubs=workers), workers),
    }
    for deployment, (found, host) in cases.items():
        array = np.zeros(4 * len(found), dtype=np.float32)
        sent = run(found, [array] * workers).sent
        passing = sum(nbytes for pair, nbytes in sent.items() if host in pair)
        assert passing / array.nbytes == pytest.approx(host_multiple(deployment, workers=workers))


def test_table_6_3() -> None:
    """The table gives no throughputs and no price of the other two columns' parts; its own rows imply them.

    What is added to a worker in a column is the same with and without a hub, so two columns give the ratio of
    throughputs. With the printed prices and formula a hub's worker then comes out 10 to 15 % cheaper than printed.
    """
    prices = PriceList()
    base, first = TABLE_6_3["sharded"], TABLE_6_3[1]
    ratios = [(1 / base[c] - 1 / base[0]) / (1 / first[c] - 1 / first[0]) for c in (1, 2)]
    assert ratios == pytest.approx([0.994, 0.994], abs=0.001)
    sharded = base[0] * prices.sharded_worker() / 1000
    spare = [sharded * 1000 / base[column] - prices.sharded_worker() for column in (1, 2)]
    columns = (prices, replace(prices, gpu=prices.gpu + spare[0] / 4), replace(prices, worker=prices.worker + spare[1]))
    rows = {}
    for over, count in WORKERS_PER_HUB.items():
        dollars = [c.hub_worker(oversubscription=over, workers_per_hub=count) for c in columns]
        rows[over] = [per_thousand(ratios[0] * sharded, d) for d in dollars]
        assert rows[over][:2] == pytest.approx(TABLE_6_3[over][:2], rel=0.15)
        assert all(ours > without for ours, without in zip(rows[over], base, strict=True))
    assert all(a < b < c for a, b, c in zip(*rows.values(), strict=True))


def test_network_price_of_a_host() -> None:
    fast = PriceList().fast
    port = 21077 / 32
    assert fast.per_host(1) == pytest.approx(795 + port + 94 + 4 * port + 2 * 94)
    assert fast.per_host(2) == pytest.approx(795 + port + 94 + (4 * port + 2 * 94) / 2)


def test_hierarchy_pays_when_the_core_is_thin() -> None:
    thin = hierarchy(per_rack=8, racks=2, core=1.0, hub=100.0, worker=10.0)
    assert thin.flat == pytest.approx(8 * 1 / 2)
    assert thin.hierarchical == pytest.approx(max(0.08, 0.1) + 0.5)
    assert thin.pays
    assert not hierarchy(per_rack=8, racks=2, core=1000.0, hub=100.0, worker=10.0).pays
    assert not hierarchy(per_rack=8, racks=1, core=1.0, hub=100.0, worker=10.0).pays
    assert not hierarchy(per_rack=8, racks=2, core=1.0, hub=100.0, worker=10.0, exchange=4.0).pays


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: host_multiple("XX", workers=2), "'XX' is unknown"),
        (lambda: host_multiple("CC", workers=0), "0 workers"),
        (lambda: host_bandwidth(model_bytes=1, iteration=0, workers=2, deployment="CC"), "above 0"),
        (lambda: hierarchy(per_rack=0, racks=1, core=1, hub=1, worker=1), "0 workers"),
        (lambda: hierarchy(per_rack=1, racks=1, core=0, hub=1, worker=1), "core bandwidth"),
        (lambda: PriceList().fast.per_host(0.5), "0.5:1"),
        (lambda: PriceList().hub_worker(oversubscription=1, workers_per_hub=0), "0 workers a hub"),
    ],
)
def test_bad_input(call: object, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        call()  # type: ignore[operator]


def test_cost_verb_takes_edited_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = tmp_path / "prices.json"
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert dovetail(["cost", "--save-prices", str(listed), "--json", str(first)]) == 0
    assert "NCS" in capsys.readouterr().out
    listed.write_text(listed.read_text().replace("699.0", "6990.0"))
    assert dovetail(["cost", "--prices", str(listed), "--json", str(second)]) == 0
    worth = [json.loads(f.read_text())["data"]["throughput_per_1000"]["hub 1:1"] for f in (first, second)]
    assert worth[0] > 2 * worth[1]
    assert dovetail(["cost", "--model", "many"]) == 2
