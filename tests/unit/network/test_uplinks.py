"""Chance is taken out of what racks have between them, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.network.matrix import ProbeMatrix
from dovetail.network.ranking import best_ranking
from dovetail.network.uplinks import without_chance

INSIDE, BETWEEN = 60e6, 20e6  # bytes per second


def matrix(racks: list[int], *, seed: int = 0, chance: float = 0.4) -> ProbeMatrix:
    """Hosts in these racks; readings between racks vary by `chance` either way, those within by 2 %."""
    rng = np.random.default_rng(seed)
    count = len(racks)
    same = np.equal.outer(racks, racks)
    spread = 1 + np.where(same, 0.02, chance) * rng.uniform(-1, 1, (count, count))
    names = [f"host{n}" for n in range(count)]
    return ProbeMatrix.from_arrays(names, np.zeros((count, count)), np.where(same, INSIDE, BETWEEN) * spread)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("racks", [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 2, 2, 2]])
def test_pairs_of_two_racks_are_alike_and_pairs_within_stay(racks: list[int], seed: int) -> None:
    given = matrix(racks, seed=seed)
    before, after = np.array(given.bandwidth), np.array(without_chance(given).bandwidth)
    same = np.equal.outer(racks, racks)
    assert np.array_equal(before[same], after[same])
    for one in set(racks):
        for other in set(racks) - {one}:
            pairs = np.ix_(np.equal(racks, one), np.equal(racks, other))
            assert np.ptp(after[pairs]) == 0
            assert after[pairs].flat[0] == np.median(before[pairs])


def test_racks_at_different_distances_keep_them() -> None:
    racks = [0, 0, 1, 1, 2, 2]
    bandwidth = np.where(np.equal.outer(racks, racks), INSIDE, BETWEEN)
    bandwidth[:2, 2:4] = bandwidth[2:4, :2] = BETWEEN / 2
    given = ProbeMatrix.from_arrays([f"host{n}" for n in range(6)], np.zeros((6, 6)), bandwidth)
    after = np.array(without_chance(given).bandwidth)
    assert after[0, 2] == BETWEEN / 2
    assert after[0, 4] == after[2, 4] == BETWEEN


def test_one_pair_that_went_wrong_does_not_hide_the_racks() -> None:
    given = matrix([0, 0, 0, 0, 1, 1, 1, 1])
    bandwidth = np.array(given.bandwidth)
    bandwidth[0, 4] = bandwidth[4, 0] = BETWEEN / 10
    after = without_chance(ProbeMatrix.from_arrays(given.hosts, np.zeros((8, 8)), bandwidth))
    assert after.bandwidth[0][4] == after.bandwidth[3][7] > BETWEEN / 2


def test_predicted_costs_of_orders_that_cross_racks_as_often_are_equal() -> None:
    found = [
        best_ranking(matrix([0, 0, 0, 0, 1, 1, 1, 1], chance=c), algorithm="ring", size=4e6, base=4, time_limit=1.0)
        for c in (0.4, 0.0)
    ]
    assert found[0].given == pytest.approx(found[0].cost, rel=0.05), "the given order crosses once, as the best does"
    assert found[1].given == pytest.approx(found[1].cost, rel=0.05)


def test_a_host_as_thin_as_the_way_between_racks_leaves_doubt() -> None:
    given = matrix([0, 0, 0, 0, 1, 1, 1, 1])
    bandwidth = np.array(given.bandwidth)
    bandwidth[0] = bandwidth[:, 0] = BETWEEN
    thin = ProbeMatrix.from_arrays(given.hosts, np.zeros((8, 8)), bandwidth)
    assert without_chance(thin) is thin


@pytest.mark.parametrize("racks", [[0] * 8, [0, 0, 0, 1], [0, 1, 2, 3], [0, 0]])
def test_without_clear_racks_nothing_changes(racks: list[int]) -> None:
    given = matrix(racks)
    assert without_chance(given) is given


def test_readings_of_latency_alone_stay() -> None:
    given = ProbeMatrix.from_arrays(["one", "two", "three"], np.ones((3, 3)))
    assert without_chance(given) is given
