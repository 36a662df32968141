"""What session tests share: stores, small plans, a hub in the background, and ranks as threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.engine.session import Options, Session
from dovetail.engine.table import TensorSpec
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.trace.graph import Param

Array = npt.NDArray[np.float32]


class Folder:
    """A store in a folder, for threads and processes, so that no test needs torch to start."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def _file(self, key: str) -> Path:
        return self._path / key.replace("/", "%")

    def set(self, key: str, value: Any, /) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        partial = self._path / f".{os.getpid()}.{threading.get_ident()}"
        partial.write_bytes(data)
        partial.replace(self._file(key))

    def get(self, key: str, /) -> bytes:
        return self._file(key).read_bytes()

    def add(self, key: str, amount: int, /) -> int:
        value = (int(self.get(key)) if self.check([key]) else 0) + amount  # each rank adds to a key of its own
        self.set(key, str(value))
        return value

    def check(self, keys: list[str], /) -> bool:
        return all(self._file(key).exists() for key in keys)


def plan_for(
    sizes: Sequence[int], *, aggregation: str = "shuffle", chunk_bytes: int = 4096, transfers: Sequence[Transfer] = ()
) -> Plan:
    """A reduce a tensor unless `transfers` say otherwise; `sizes` in elements of f32."""
    names = [f"p{i}" for i in range(len(sizes))]
    whole = [
        Transfer(REDUCE, ((name, 0, 4 * n),), priority=i) for i, (name, n) in enumerate(zip(names, sizes, strict=True))
    ]
    return Plan(
        policy="test",
        params=tuple(Param(name, 4 * n) for name, n in zip(names, sizes, strict=True)),
        transfers=tuple(transfers) or tuple(whole),
        aggregation=aggregation,
        chunk_bytes=chunk_bytes,
    )


def specs_for(sizes: Sequence[int]) -> list[TensorSpec]:
    return [TensorSpec(f"p{i}", 4 * n) for i, n in enumerate(sizes)]


def open_rank(folder: str, rank: int, world: int, sizes: Sequence[int], **more: Any) -> Session:
    """A session on `sizes`; `aggregation` and `chunk_bytes` shape the plan, the rest goes to Session.open."""
    shape = {key: more.pop(key) for key in ("aggregation", "chunk_bytes", "transfers") if key in more}
    more.setdefault("options", Options(patience=20))
    plan = plan_for(sizes, **shape)
    return Session.open(store=Folder(folder), rank=rank, world=world, plan=plan, tensors=specs_for(sizes), **more)


def reduce_once(session: Session, iteration: int, gradients: Sequence[Array | None]) -> None:
    """Submit everything and wait; results replace the gradients."""
    session.begin(iteration)
    session.release(iteration)
    for i in reversed(range(len(gradients))):
        gradient = gradients[i]
        session.submit(i, iteration, gradient.ctypes.data if gradient is not None else 0)
    session.backward_done(iteration)
    assert session.wait(range(len(gradients)), iteration, timeout=20)


def threads(world: int, body: Callable[[int], Any]) -> list[Any]:
    """What `body(rank)` returned or raised on each rank, as threads of this process."""
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:
            results[rank] = error

    running = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a rank hangs"
    return results


def values(world: int, body: Callable[[int], Any]) -> list[Any]:
    """What `body(rank)` returned on each rank; the first error is raised here."""
    results = threads(world, body)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class RunningHub:
    """A `dovetail hub` process."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextlib.contextmanager
def hub(*arguments: str) -> Iterator[RunningHub]:
    """A hub on a free loopback port, ended with the block."""
    argv = [sys.executable, "-m", "dovetail.cli.main", "hub", "--bind", "127.0.0.1", "--port", "0", *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("dovetail hub: ready on "), line
        yield RunningHub(process, line.split("ready on ")[1].split(";")[0].strip())
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
