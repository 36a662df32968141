"""Embedding takes noise out of probes, and says how well it knows who is near whom."""

from __future__ import annotations

import numpy as np
import pytest
from datacenters import places, probes

from dovetail.errors import BadInput
from dovetail.network.embed import accuracies, affinity_accuracy, embed, without_outliers
from dovetail.network.matrix import ProbeMatrix


def gain(seed: int, noise: float, alpha: float) -> float:
    where = places(64, seed)
    measured = probes(where, seed, noise=noise)
    return affinity_accuracy(embed(measured, alpha=alpha).distances(), where) - affinity_accuracy(measured, where)


@pytest.mark.parametrize("noise", [0.3, 0.6])
def test_alpha_2_gains_five_points_on_heavy_tailed_probes(noise: float) -> None:
    gains = [gain(seed, noise, 2.0) for seed in range(4)]
    assert min(gains) > 0.03
    assert np.mean(gains) >= 0.05


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_three_racks_are_found_again(alpha: float) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.4, 0.8]], 5, axis=0) + rng.normal(scale=0.01, size=(15, 2))
    apart = np.linalg.norm(truth[:, None] - truth[None], axis=-1) ** alpha * 5e-5
    found = embed(apart, alpha=alpha)
    assert found.stress < 0.06
    assert found.distances() == pytest.approx(apart, abs=6e-6)


def test_points_in_a_plane_are_found_again() -> None:
    truth = np.random.default_rng(0).random((12, 2))
    apart = np.linalg.norm(truth[:, None] - truth[None], axis=-1)
    assert embed(apart, alpha=1.0).distances() == pytest.approx(apart, abs=0.02)


def test_heights_explain_slow_nodes_and_are_never_negative() -> None:
    truth = np.random.default_rng(1).random((12, 2))
    fixed = np.zeros(12)
    fixed[3] = 2.0
    apart = ((truth[:, None] - truth[None]) ** 2).sum(axis=-1) + fixed[:, None] + fixed[None]
    found = embed(apart, heights=True)
    assert found.heights.min() >= 0
    assert found.heights.argmax() == 3
    assert found.stress < embed(apart).stress


def test_equal_seeds_give_equal_points() -> None:
    measured = probes(places(16, 0), 0, noise=0.2)
    first, second, other = embed(measured, seed=5), embed(measured, seed=5), embed(measured, seed=6)
    assert np.array_equal(first.points, second.points)
    assert not np.array_equal(first.points, other.points)


def test_an_outlier_is_cut_and_a_far_node_is_not() -> None:
    measured = np.full((12, 12), 10.0)
    measured[0, :] = measured[:, 0] = 60.0  # far from all
    measured[3, 4] = measured[4, 3] = 500.0  # one late probe
    capped = without_outliers(measured)
    assert capped[3, 4] == 20.0
    assert capped[0, 5] == 60.0


def test_affinity_accuracy_counts_comparable_triplets() -> None:
    where = [("a", 0), ("a", 1), ("b", 2)]
    right = [[0, 1, 5], [1, 0, 5], [5, 5, 0]]
    assert affinity_accuracy(right, where) == 1.0  # seen from 0 and from 1; from 2 both are equally far
    half = [[0, 1, 5], [9, 0, 5], [5, 5, 0]]
    assert affinity_accuracy(half, where) == 0.5
    with pytest.raises(BadInput, match="do not tell"):
        affinity_accuracy(np.zeros((2, 2)), [("a", 0), ("a", 1)])
    with pytest.raises(BadInput, match="do not fit"):
        affinity_accuracy(np.zeros((3, 3)), [("a", 0), ("a", 1)])


def test_accuracies_are_of_what_was_probed_and_of_the_map() -> None:
    where = places(16, 0)
    latency = probes(where, 0, noise=0.3)
    matrix = ProbeMatrix.from_arrays([str(i) for i in range(16)], latency)
    (raw, embedded) = accuracies(matrix, where)["latency"]
    assert raw == affinity_accuracy(np.maximum(latency, latency.T), where)
    assert embedded > raw
    with_bandwidth = ProbeMatrix.from_arrays(matrix.hosts, latency, 1 / (latency + np.eye(16)))
    assert list(accuracies(with_bandwidth, where)) == ["latency", "bandwidth"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_nodes_and_equal_probes(count: int) -> None:
    assert embed(np.zeros((count, count))).distances() == pytest.approx(np.zeros((count, count)), abs=1e-3)


@pytest.mark.parametrize(
    ("matrix", "options", "says"),
    [
        ([[0, 1]], {}, "not an N x N"),
        ([[0, float("nan")], [1, 0]], {}, "nodes 0 and 1 is nan"),
        (np.ones((2, 2)), {"alpha": 3.0}, "alpha is 3"),
        (np.ones((2, 2)), {"dimensions": 0}, "0 dimensions"),
    ],
)
def test_bad_input(matrix: object, options: dict[str, float], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        embed(matrix, **options)  # type: ignore[arg-type]
