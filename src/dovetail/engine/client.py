"""A client that only pulls: an inference agent that reads a running job's current parameters from its hubs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from dovetail.engine.address import parse_address
from dovetail.engine.binding import NativeEngine, NativeJob, engine_error, give, make_engine
from dovetail.engine.control import Attach, Attached, Intro, Leave, pack
from dovetail.engine.handshake import Wire
from dovetail.engine.joining import ask
from dovetail.engine.links import Key, Target, connect, run
from dovetail.engine.table import PULL_PRIORITY, TENSOR, Table, TensorSpec, decode
from dovetail.errors import BadInput, Mismatch, PeerLost, Refused, Unreachable

SLICE = 0.25  # seconds of one native wait, so that Ctrl-C is heard
# numpy has no bfloat16: its bits come as 16-bit integers.
_NUMPY = {"f32": np.float32, "f64": np.float64, "bf16": np.uint16, "f16": np.float16}


@dataclass(frozen=True, slots=True)
class Pulled:
    """A parameter as it was at the hubs after `step` updates."""

    spec: TensorSpec
    values: npt.NDArray[np.generic]  # flat
    step: int


class Client:
    """Reads parameters from all hubs of a job, the most urgent first; changes nothing there."""

    def __init__(
        self, engine: NativeEngine, job: NativeJob, table: Table, labels: Sequence[str], wires: Sequence[Wire]
    ) -> None:
        self._engine, self._job, self._table = engine, job, table
        self._labels, self._wires = tuple(labels), tuple(wires)
        self._closed = False

    @classmethod
    def connect(
        cls, hubs: Sequence[str], *, namespace: str = "default", secret: str = "", patience: float = 30.0
    ) -> Client:
        """Attach to a running job; `hubs` are all hubs of that job, in any order."""
        if not hubs:
            raise BadInput("a client without hubs; give hubs=['host:port', ...]")
        targets = []
        for text in hubs:
            host, port = parse_address(text)
            targets.append(Target(label="hub", host=host, port=port, secret=secret))
        found, links, wires = run(_attach(targets, namespace, patience))
        table = decode(found[0].table)
        labels = [f"rank {r}" for r in range(table.workers)] + [f"hub {h}" for h in range(table.hubs)]
        for target, attached in zip(targets, found, strict=True):
            labels[attached.node] = f"hub {attached.node - table.workers} at {target.address}"
        engine = make_engine(threads=1)
        job = engine.job(namespace, table.nodes, labels, table.workers, False, 10.0)
        give(job, table.for_guest())
        for (peer, lane), wire in sorted(links.items()):
            job.link(peer, lane, wire.sock.detach())
        job.start()
        return cls(engine, job, table, labels, wires)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        return self._table.tensors

    def pull(self, names: Sequence[str] | None = None, *, version: int = 0, timeout: float = 60.0) -> dict[str, Pulled]:
        """The named parameters (default: all) once they have seen `version` updates; 0 = as they are."""
        return dict(self.stream(names, version=version, timeout=timeout))

    def stream(
        self, names: Sequence[str] | None = None, *, version: int = 0, timeout: float = 60.0
    ) -> Iterator[tuple[str, Pulled]]:
        """The same, one by one in the order of the plan's priorities, each as soon as it is there."""
        index = {t.name: i for i, t in enumerate(self.tensors)}
        for name in names or ():
            if name not in index:
                raise BadInput(f"the job has no parameter {name!r}")
        wanted = sorted((index[n] for n in names or index), key=self._urgency)
        end = time.monotonic() + timeout
        asked: list[tuple[int, npt.NDArray[np.generic], int | None]] = []
        for i in wanted:
            spec = self.tensors[i]
            values: npt.NDArray[np.generic] = np.zeros(
                spec.nbytes // np.dtype(_NUMPY[spec.dtype]).itemsize, dtype=_NUMPY[spec.dtype]
            )
            asked.append((i, values, self._job.get(i, 0, values.ctypes.data, version) if spec.nbytes else None))
        open_tickets = {ticket for _, _, ticket in asked if ticket is not None}
        try:
            for i, values, ticket in asked:
                if ticket is not None:
                    self._wait(ticket, end, timeout)
                    open_tickets.discard(ticket)
                yield self.tensors[i].name, Pulled(self.tensors[i], values, self._job.get_step(i))
        finally:
            for ticket in open_tickets:  # given up: the engine may no longer write to these arrays
                self._job.cancel_get(ticket)

    def _urgency(self, tensor: int) -> tuple[int, int]:
        rows = self._table.rows
        mine = rows[rows[:, TENSOR] == tensor, PULL_PRIORITY]
        return (int(mine.min(initial=1 << 40)), tensor)

    def _wait(self, ticket: int, end: float, timeout: float) -> None:
        while True:
            try:
                if self._job.wait_get(ticket, SLICE):
                    return
            except engine_error() as error:
                peer, reason, step = error.args
                label = self._labels[peer] if 0 <= peer < len(self._labels) else "a peer"
                where = label.rpartition(" at ")[2]
                raise PeerLost(f"{label}: {reason}", peer=peer, address=where, step=step) from None
            if time.monotonic() > end:
                raise Unreachable(f"the hubs have no such version of the parameters after {timeout:g} s")

    def close(self) -> None:
        """Leave; the job does not notice."""
        if self._closed:
            return
        self._closed = True
        self._job.close()
        for wire in self._wires:
            with contextlib.suppress(OSError):
                wire.sock.settimeout(1.0)
                wire.sock.sendall(pack(Leave()))
            wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _attach(
    targets: Sequence[Target], namespace: str, seconds: float
) -> tuple[list[Attached], dict[Key, Wire], list[Wire]]:
    wires: list[Wire] = []
    links: dict[Key, Wire] = {}
    found: list[Attached] = []
    try:
        for target in targets:
            wires.append(await connect(target, Intro("control"), seconds=seconds))
            found.append(await ask(wires[-1], target, Attach(namespace), Attached, seconds=seconds))
        table = await asyncio.to_thread(decode, found[0].table)
        missing = set(table.roots()) - {a.node for a in found}
        if missing:
            raise Refused(f"the job {namespace!r} has {table.hubs} hubs and {len(missing)} of them were not given")
        if len({a.table for a in found}) > 1:
            raise Mismatch(f"the hubs run different jobs called {namespace!r}")
        for target, attached in zip(targets, found, strict=True):
            for lane in range(table.lanes):
                intro = Intro("data", attached.token, attached.guest, lane)
                links[attached.node, lane] = await connect(target, intro, seconds=seconds)
    except BaseException:
        for wire in (*links.values(), *wires):
            wire.close()
        raise
    return found, links, wires
