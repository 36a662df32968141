"""Autotune at work: measurements travel with the gradients, and the masters' work moves between two rounds."""

from __future__ import annotations

import sys
import time

import numpy as np

from dovetail.engine.collectives import Collectives, Pending
from dovetail.engine.session import Session
from dovetail.engine.traffic import traffic
from dovetail.plan.patterns import Groups
from dovetail.plan.tuning import Floats, Shares, Sight, even
from dovetail.training.record import Recorder
from dovetail.training.tuning import Decision, Tuner

_URGENT = -(1 << 20)  # before every gradient
_ENOUGH = 16 * 1024  # bytes; fewer say more about the round trip than about the bandwidth


class Autotune:
    """One rank's part; all ranks call `round_begins` before the same rounds and come to the same decisions."""

    def __init__(self, session: Session, recorder: Recorder, *, groups: Groups | None) -> None:
        self._session = session
        self._recorder = recorder
        self._calls = Collectives(session)
        world = session.world
        self.tuner = Tuner(even(world), groups=groups, traffic=lambda shares: self._traffic(shares))
        self._begun = 0.0  # the round that runs
        self._acked: dict[tuple[int, int], tuple[int, float]] = {}  # bytes and busy seconds by then
        self._rates = np.zeros(world)  # of ours, by peer
        self._table = np.zeros((world, world + 2), dtype=np.float32)  # a row a rank: seconds, longest trip, rates
        self._pending: Pending | None = None

    def round_begins(self, number: int) -> None:
        """All results of the rounds before are here; hear what the last but one showed, and tell about the last."""
        now = time.monotonic()
        mine = self._measure(now - self._begun if self._begun else 0.0)
        if self._pending is not None:
            self._pending.wait()
            decision = self.tuner.observe(self._sight())
            if decision is not None:
                self._follow(decision, number)
        self._table[:] = 0.0
        self._table[self._session.rank] = mine
        if self._begun:
            self._pending = self._all_reduce(self._table)
        self._begun = time.monotonic()

    def _measure(self, seconds: float) -> Floats:
        """Our row: the round's seconds, the longest of our round trips, and our bandwidth to each rank."""
        paths = self._session.paths()
        found = np.zeros(len(self._rates))
        known = np.zeros(len(self._rates), dtype=bool)
        for path in paths:
            key = (path.peer, path.lane)
            nbytes, busy = self._acked.get(key, (path.acked, path.busy))
            self._acked[key] = (path.acked, path.busy)
            if path.acked - nbytes >= _ENOUGH and path.busy > busy and path.peer < len(found):
                found[path.peer] += (path.acked - nbytes) / (path.busy - busy)
                known[path.peer] = True
        self._rates = np.where(known, found, self._rates)
        return np.array([seconds, max(path.rtt for path in paths), *self._rates])

    def _sight(self) -> Sight:
        table = self._table.astype(np.float64)
        return Sight(seconds=float(table[:, 0].max()), trips=table[:, 1], rates=table[:, 2:])

    def _follow(self, decision: Decision, number: int) -> None:
        """Say it, and go over to the new shares: nobody leaves the old ones before all have all results."""
        if self._session.rank == 0:
            print(f"dovetail: autotune before round {number + 1}: {decision.reason}", file=sys.stderr, flush=True)
        with self._recorder.deciding(decision.reason):
            if decision.shares is None:
                return
            table = self._session.share_out(_or_none(decision.shares))
            self._meet()
            self._session.reroute(table)
            self._meet()

    def _meet(self) -> None:
        """Return when all ranks have come here."""
        one = np.ones(1, dtype=np.float32)
        self._all_reduce(one).wait()

    def _all_reduce(self, values: np.typing.NDArray[np.float32]) -> Pending:
        return self._calls.all_reduce(values.ctypes.data, values.nbytes, "f32", priority=_URGENT)

    def _traffic(self, shares: Shares) -> Floats:
        return traffic(self._session.share_out(_or_none(shares)))


def _or_none(shares: Shares) -> Shares | None:
    """Even shares have a table of their own, with fewer and simpler routes."""
    return None if shares == even(len(shares)) else shares
