"""The native engine as Python sees it; loaded when first needed, so that plans can be handled without it."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dovetail.engine.table import NodeTable
from dovetail.errors import DovetailError

SEND, RECEIVE, UPDATE = range(3)  # kinds of events
Event = tuple[int, int, int, int, int, int, int, int, int]


class NativeJob(Protocol):
    """One job on one node."""

    def table(
        self,
        programs: list[list[tuple[int, list[int]]]],
        tensors: list[tuple[int, int, int]],
        chunks: npt.NDArray[np.int64],
        transfers: list[list[int]],
        windows: list[int],
        /,
    ) -> None: ...
    def extend(
        self,
        programs: list[list[tuple[int, list[int]]]],
        tensors: list[tuple[int, int, int]],
        chunks: npt.NDArray[np.int64],
        transfers: list[list[int]],
        windows: list[int],
        divisor: int,
        /,
    ) -> None: ...
    def reroute(self, programs: list[list[tuple[int, list[int]]]], chosen: list[int], /) -> None: ...
    def rule(self, kind: int, flags: int, /) -> None: ...
    def link(self, peer: int, lane: int, fd: int, /) -> None: ...
    def start(self) -> None: ...
    def bind(self, tensor: int, ptr: int, /) -> None: ...
    def put(self, tensor: int, slot: int, ptr: int, step: int, /) -> None: ...
    def get(self, tensor: int, slot: int, ptr: int, version: int, /) -> int: ...
    def wait_get(self, ticket: int, timeout: float, /) -> int: ...
    def cancel_get(self, ticket: int, /) -> None: ...
    def get_step(self, tensor: int, /) -> int: ...
    def hyper(self, iteration: int, group: int, values: list[float], /) -> None: ...
    def submit(self, tensor: int, iteration: int, ptr: int, more: bool = False, /) -> None: ...
    def backward_done(self, iteration: int, /) -> None: ...
    def release(self, iteration: int, /) -> None: ...
    def wait(self, tensors: list[int], iteration: int, timeout: float, /) -> bool: ...
    def watch_squares(self, iteration: int, /) -> None: ...
    def squares(self, iteration: int, timeout: float, /) -> float | None: ...
    def completed(self, tensor: int, /) -> int: ...
    def absent(self, tensor: int, /) -> bool: ...
    def failure(self) -> tuple[int, str, int] | None: ...
    def fail(self, peer: int, reason: str, /) -> None: ...
    def events(self) -> list[Event]: ...
    def paths(self) -> list[tuple[int, int, float, float, float, int]]: ...
    def counters(self) -> dict[str, int]: ...
    def sent_by_priority(self) -> dict[int, int]: ...
    def close(self) -> None: ...


class NativeEngine(Protocol):
    """The loop threads that jobs share; they end when it and its jobs are no longer referred to."""

    def job(
        self, name: str, node: int, labels: list[str], contributors: int, deterministic: bool, timeout: float, /
    ) -> NativeJob: ...


def make_engine(*, threads: int, rate: float = 0.0, credit: int = 0, trace: bool = False) -> NativeEngine:
    """A native engine with its threads running."""
    engine: NativeEngine = _native().Engine(threads=threads, rate=rate, credit=credit, trace=trace)
    return engine


def engine_error() -> type[Exception]:
    """What native calls raise when the job has failed; args are (peer, reason, step)."""
    found: type[Exception] = _native().EngineError
    return found


def give(job: NativeJob, view: NodeTable) -> None:
    """Hand a node its table."""
    job.table(view.programs, view.tensors, view.chunks, view.transfers, view.windows)


def _native() -> Any:
    try:
        return importlib.import_module("dovetail._native")
    except ImportError as error:
        raise DovetailError(f"the native engine cannot be loaded ({error}); install with `pip install .`") from None
