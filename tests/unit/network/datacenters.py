"""Synthetic data centres: where hosts are, and what noisy probes between them would say."""

from __future__ import annotations

import numpy as np

Place = tuple[int, int, int, int]


def places(nodes: int, seed: int, *, clusters: int = 4, rows: int = 3, racks: int = 2) -> list[Place]:
    """(cluster, row, rack, host) of VMs that a scheduler put anywhere."""
    rng = np.random.default_rng(seed)
    return [
        (int(rng.integers(clusters)), int(rng.integers(rows)), int(rng.integers(racks)), host) for host in range(nodes)
    ]


def common(a: Place, b: Place) -> int:
    """Levels that two places share, from the widest."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), 4)


def probes(found: list[Place], seed: int, *, noise: float) -> np.ndarray:
    """Microseconds: 20 in a rack, 35 in a row, 50 in a cluster, 80 beyond, with heavy-tailed extra delay."""
    rng = np.random.default_rng(seed)
    true = np.array([[{0: 80.0, 1: 50.0, 2: 35.0, 3: 20.0, 4: 0.0}[common(a, b)] for b in found] for a in found])
    late = true * (1 + noise * rng.pareto(1.5, true.shape))
    return np.asarray(np.maximum(late, late.T))
