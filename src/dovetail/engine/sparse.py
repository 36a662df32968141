"""Plans that keep less than all: the largest values of a gradient travel with their places, the rest waits at home.

What stays behind is added to the next gradient (error feedback). Every rank gathers what all ranks have sent and makes
the mean of it, so all of them hold the same.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.engine.collectives import Collectives
from dovetail.engine.rule import Hyper
from dovetail.engine.session import Options, Session
from dovetail.engine.table import TensorSpec
from dovetail.engine.usage import Usage
from dovetail.errors import BadInput
from dovetail.plan.linkcost import WITH_HUBS
from dovetail.plan.opening import opening_plan
from dovetail.plan.schedule import PUSH, Plan
from dovetail.timeline import Span

GATHERING = ("shuffle", "ring")  # patterns in which every rank can give its values to all
KEPT = np.dtype([("place", "<u4"), ("value", "<f4")])
MOST_VALUES = 1 << 30  # of one tensor; larger places would look like no number to the engine

Floats = npt.NDArray[np.float32]


def check_sparse(plan: Plan, tensors: Iterable[TensorSpec]) -> None:
    """Raise one clear line if the plan's kept values cannot be gathered among the workers."""
    if plan.update != "worker" or plan.aggregation in WITH_HUBS:
        raise BadInput(
            f"a plan that keeps {plan.keep:.3%} of gradient values is summed at the workers; leave out hubs and "
            "update='hub', or the pass 'sparsify'"
        )
    for tensor in tensors:
        if tensor.dtype != "f32" or tensor.nbytes // 4 > MOST_VALUES:
            raise BadInput(
                f"{tensor.name!r} has {tensor.nbytes} bytes of {tensor.dtype}; 'sparsify' takes f32 of at most "
                f"{4 * MOST_VALUES} bytes: leave the pass out"
            )


@dataclass(slots=True)
class _Parcel:
    """What travels of one tensor: a row a rank, and where the mean goes."""

    channels: range  # the session's tensors, one a rank
    rows: npt.NDArray[Any]  # ranks x kept values
    residual: Floats
    target: int = 0  # address of the gradient, or of the memory bound for it
    bound: int = 0
    given: int = 0  # the iteration that was submitted last
    done: int = 0  # the one whose mean is in place


class SparseSession:
    """A session as training uses it."""

    def __init__(
        self, session: Session, plan: Plan, tensors: Sequence[TensorSpec], residuals: dict[str, Floats]
    ) -> None:
        self._session = session
        calls = Collectives(session)
        urgency: dict[str, int] = {}
        for transfer in plan.transfers:
            for name in transfer.params if transfer.kind != PUSH else ():
                urgency[name] = min(transfer.priority, urgency.get(name, transfer.priority))
        self._parcels: list[_Parcel] = []
        for tensor in tensors:
            values = tensor.nbytes // 4
            kept = math.ceil(plan.keep * values)
            rows = np.zeros((session.world, kept), dtype=KEPT)
            channels = calls.gather_channel(rows[0].nbytes, "f32", priority=urgency[tensor.name]) if kept else range(0)
            residual = residuals.setdefault(tensor.name, np.zeros(values, dtype=np.float32))
            self._parcels.append(_Parcel(channels, rows, residual))

    @classmethod
    def open(
        cls,
        *,
        store: Any,
        rank: int,
        world: int,
        plan: Plan,
        tensors: Sequence[TensorSpec],
        residuals: dict[str, Floats],
        options: Options,
        namespace: str,
    ) -> SparseSession:
        """Meet the other ranks; `residuals` are kept in the caller's dictionary, for a session that follows."""
        check_sparse(plan, tensors)
        pattern = plan.aggregation if plan.aggregation in GATHERING else GATHERING[0]
        opening = opening_plan(plan.policy, pattern, chunk_bytes=plan.chunk_bytes)
        specs = [TensorSpec(p.name, p.nbytes) for p in opening.params]
        session = Session.open(
            store=store, rank=rank, world=world, plan=opening, tensors=specs, options=options, namespace=namespace
        )
        return cls(session, plan, tensors, residuals)

    def bind(self, index: int, pointer: int) -> None:
        """The mean goes here where this rank has no gradient."""
        self._parcels[index].bound = pointer

    def begin(self, iteration: int, hypers: Sequence[Hyper] = ()) -> None:
        """Nothing to prepare: the update is the workers'."""

    def submit(self, index: int, iteration: int, pointer: int, more: bool = False) -> None:
        """Send the largest of gradient and residual; 0 = there is no gradient this time, and the residual waits."""
        parcel, rank = self._parcels[index], self._session.rank
        parcel.target, parcel.given = pointer or parcel.bound, iteration
        if pointer and parcel.channels:
            _pack(parcel.rows[rank], parcel.residual, _floats(pointer, len(parcel.residual)))
        for peer, channel in enumerate(parcel.channels):
            row = parcel.rows[peer].ctypes.data
            if peer == rank and pointer:
                self._session.submit(channel, iteration, row, more)
            else:
                self._session.bind(channel, row)
                self._session.submit(channel, iteration, 0, more)

    def backward_done(self, iteration: int) -> None:
        """What waited for company leaves."""
        self._session.backward_done(iteration)

    def release(self, iteration: int) -> None:
        """Means are written only when they are asked for."""
        self._session.release(iteration)

    def wait(self, indices: Sequence[int], iteration: int, *, timeout: float | None = None) -> bool:
        """Wait until the means are in place; False after `timeout` seconds, PeerLost when they never will be."""
        due = [self._parcels[i] for i in indices]
        channels = [channel for parcel in due for channel in parcel.channels]
        if not self._session.wait(channels, iteration, timeout=timeout):
            return False
        for parcel in due:
            self._unpack(parcel)
        return True

    def completed(self, index: int) -> int:
        """The last iteration whose mean is in place."""
        parcel = self._parcels[index]
        if parcel.done < parcel.given and all(self._session.completed(c) >= parcel.given for c in parcel.channels):
            self._unpack(parcel)
        return parcel.done

    def absent(self, index: int) -> bool:
        """Whether no rank had a gradient in the last completed iteration."""
        channels = self._parcels[index].channels
        return bool(channels) and all(map(self._session.absent, channels))

    def spans(self) -> list[Span]:
        """What was sent and received since the last call."""
        return self._session.spans()

    def usage(self) -> Usage:
        """Use of the links since the start."""
        return self._session.usage()

    def check(self) -> None:
        """Raise PeerLost if the job has failed."""
        self._session.check()

    def fail(self, reason: str) -> None:
        """Tell everybody that this rank gives up, and stop."""
        self._session.fail(reason)

    def close(self) -> None:
        """Say goodbye, so that others do not report a loss."""
        self._session.close()

    def _unpack(self, parcel: _Parcel) -> None:
        if parcel.done == parcel.given:
            return
        parcel.done = parcel.given
        if not parcel.channels or not parcel.target:
            return
        mean = _floats(parcel.target, len(parcel.residual))
        mean[:] = 0
        for channel, row in zip(parcel.channels, parcel.rows, strict=True):
            if not self._session.absent(channel):
                mean[row["place"]] += row["value"]  # places of one rank differ, so none is lost
        mean /= np.float32(self._session.world)


def _pack(row: npt.NDArray[Any], residual: Floats, gradient: Floats) -> None:
    """Move the largest of gradient and residual to the row; what is left becomes the residual."""
    total = residual + gradient
    places = np.argpartition(np.abs(total), len(total) - len(row))[len(total) - len(row) :]
    places.sort()
    row["place"], row["value"] = places, total[places]
    # What is no number sorts last, so the others hear of an overflow; but it must not come again in later steps.
    if np.isfinite(total).all():
        residual[:] = total
        residual[places] = 0


def _floats(pointer: int, count: int) -> Floats:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(pointer))
