"""Who sends how much to whom in one iteration, by the chunk table alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dovetail.engine.table import NBYTES, ROUTE, Table
from dovetail.plan.steps import OFFER, SEND


def traffic(table: Table) -> npt.NDArray[np.float64]:
    """Bytes from node i to node j in an iteration in which every rank has every gradient."""
    carried = np.bincount(table.rows[:, ROUTE], weights=table.rows[:, NBYTES], minlength=len(table.routes))
    found = np.zeros((table.nodes, table.nodes))
    for route, nbytes in zip(table.routes, carried, strict=True):
        for node, program in route.items():
            for peer in (p for step in program if step.op in (SEND, OFFER) for p in step.peers):
                found[node, peer] += nbytes
    return found
