"""Orders of pulls, and the time that they cannot beat."""

from __future__ import annotations

import pytest

from dovetail.bench.bounds import Network
from dovetail.bench.models import published
from dovetail.bench.orders import Workload
from dovetail.bench.overhead import bench_overhead
from dovetail.bench.pull import RANDOM, bench_pull, priorities, pull_time
from dovetail.bench.stage import Site
from dovetail.errors import BadInput

WORK = Workload(model="vgg16", scale=0.01, compute=0.2)
NAMES = [layer.name for layer in published("vgg16") if layer.params]


@pytest.mark.parametrize("order", ["tic", "tac"])
def test_a_chain_is_pulled_in_the_order_of_its_forward_pass(order: str) -> None:
    ranks = priorities(order, WORK, seed=0)
    assert sorted(ranks, key=ranks.__getitem__) == NAMES


def test_random_orders_differ_by_round_and_are_the_same_again() -> None:
    first, second = (priorities(RANDOM, WORK, seed=seed) for seed in (0, 1))
    assert first != second
    assert first == priorities(RANDOM, WORK, seed=0)
    assert sorted(first.values()) == list(range(len(NAMES)))


def test_the_hub_s_link_bounds_what_all_clients_pull() -> None:
    assert pull_time(100, Network(racks=(0, 0), rate=10.0, hub_rate=40.0)) == 10.0
    assert pull_time(100, Network(racks=(0, 0), rate=10.0, hub_rate=10.0)) == 20.0
    assert pull_time(100, Network(racks=(0, 0), rate=0.0)) == 0.0


def test_bad_input_is_named() -> None:
    site = Site(workers=1, rate=0.0)
    for orders, rounds, words in ((["tick"], 1, "'tick'"), (["tac"], 0, "0 rounds"), ([], 1, "orders ''")):
        with pytest.raises(BadInput, match=words):
            bench_pull(site, WORK, orders=orders, rounds=rounds)
    with pytest.raises(BadInput, match="forward pass of 0"):
        bench_pull(site, Workload(model="vgg16", scale=0.01, compute=0.0), orders=["tac"], rounds=1)
    with pytest.raises(BadInput, match="1 workers"):
        bench_overhead(workers=1, params=200, step=0.1, rounds=1, steps=1)
