"""Groups are near, even and found from probes in any order of hosts."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import BadInput
from dovetail.network.group import balanced_random, find_groups, group, group_hosts, silhouette, usual_count
from dovetail.network.matrix import ProbeMatrix


def rack_probes(sizes: list[int], seed: int, *, noise: float = 0.3) -> tuple[np.ndarray, list[list[int]]]:
    """50 us in a rack, 150 us between, hosts in mixed order, some probes far too long; and the racks."""
    rng = np.random.default_rng(seed)
    home = rng.permutation(np.repeat(range(len(sizes)), sizes))
    true = np.where(home[:, None] == home[None], 50e-6, 150e-6)
    late = true * (1 + noise * rng.pareto(2, true.shape))
    racks = [np.flatnonzero(home == r).tolist() for r in range(len(sizes))]
    return np.maximum(late, late.T), sorted(racks)


@pytest.mark.parametrize("sizes", [[4, 4], [8, 8, 8], [4] * 4, [8] * 8, [6, 8, 10]])
@pytest.mark.parametrize("seed", range(3))
def test_racks_are_found_exactly(sizes: list[int], seed: int) -> None:
    probes, racks = rack_probes(sizes, seed, noise=0.1)
    assert sorted(find_groups(probes).groups) == racks


def test_racks_that_only_bandwidth_shows_are_found() -> None:
    home = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    rng = np.random.default_rng(0)
    latency = rng.uniform(100e-6, 120e-6, (8, 8))
    bandwidth = np.where(home[:, None] == home[None], 60e6, 20e6) * rng.uniform(0.9, 1.1, (8, 8))
    matrix = ProbeMatrix.from_arrays([f"h{i}" for i in range(8)], latency, bandwidth)
    assert group_hosts(matrix).groups == [[0, 3, 5, 6], [1, 2, 4, 7]]


def test_sizes_keep_to_elasticity() -> None:
    points = np.random.default_rng(0).normal(size=(30, 2))
    for elasticity, least in ((1.0, 6), (1.5, 4), (2.0, 3)):
        sizes = [len(g) for g in group(points, count=5, elasticity=elasticity).groups]
        assert sum(sizes) == 30
        assert min(sizes) >= least
    assert [len(g) for g in group(points, count=5, elasticity=1.0).groups] == [6] * 5


def test_a_cloud_without_structure_gives_the_usual_count() -> None:
    points = np.random.default_rng(3).normal(size=(36, 2))
    assert len(group(points).groups) == usual_count(36) == 6


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_few_nodes(nodes: int) -> None:
    found = find_groups(np.random.default_rng(0).random((nodes, nodes))).groups
    assert sorted(n for g in found for n in g) == list(range(nodes))


def test_equal_seeds_give_equal_groups() -> None:
    points = np.random.default_rng(4).normal(size=(25, 2))
    assert group(points, seed=1) == group(points, seed=1)


def test_groups_beat_balanced_random_ones() -> None:
    probes, _ = rack_probes([8] * 4, 5)
    inside = [
        np.mean([probes[i, j] for g in found for i in g for j in g if i < j])
        for found in (find_groups(probes, count=4).groups, balanced_random(32, count=4))
    ]
    assert inside[0] < 0.7 * inside[1]
    assert [len(g) for g in balanced_random(10, count=3)] == [4, 3, 3]


def test_silhouette_of_two_pairs() -> None:
    apart = np.array([[0.0, 2, 9, 9], [2, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]])
    floor = np.quantile(apart[apart > 0], 0.01)
    first = 1 - (2 - floor) / (9 - floor)
    assert silhouette(apart, [0, 0, 1, 1]) == pytest.approx((first + 1) / 2)
    assert silhouette(apart, [0, 1, 2, 2]) < 0.6  # two that are near each other are not two groups
    assert silhouette(apart, [0, 1, 0, 1]) < 0


def test_bad_input() -> None:
    with pytest.raises(BadInput, match="elasticity is 3"):
        group(np.zeros((4, 2)), elasticity=3)
    with pytest.raises(BadInput, match="cannot form 5 groups"):
        group(np.zeros((4, 2)), count=5)
