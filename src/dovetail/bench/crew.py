"""The processes of one system in a bench: started on their hosts, ordered about, and ended."""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from dovetail.errors import DovetailError
from dovetail.lab import Hosts, environment, start_hubs
from dovetail.lab.run import end

T = TypeVar("T")
PATIENCE = 300.0  # seconds for one order; a bench never hangs
# An accelerator's gradients come from a pool. Left to itself, malloc gives large ones back to the kernel or not, as the
# heap happens to lie, and page faults differ from system to system by a millisecond or two an iteration.
POOLED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}  # bytes; the most it takes
VERDICT = "dovetail: "  # how a line begins that distribute prints


class BenchError(DovetailError):
    """A run did not come to its end."""


class Crew:
    """Ranks of one job on the lab's first hosts; rank 0 takes no other role. `number` tells jobs apart."""

    def __init__(self, lab: Hosts, name: str, module: str, post: Any, *, workers: int, number: int) -> None:
        self.name, self.workers = name, workers
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-bench-")
        self._processes: list[subprocess.Popen[bytes]] = []
        argv = [sys.executable, "-m", module, msgspec.json.encode(post).decode()]
        for rank in range(workers):
            env = {
                **environment(lab, rank),
                "WORLD_SIZE": str(workers),
                "MASTER_PORT": str(lab.master_port + 1 + number),
                "OMP_NUM_THREADS": "1",
                **POOLED,
            }
            with self._log(rank).open("wb") as log:
                pipe = subprocess.PIPE
                self._processes.append(lab.popen(rank, argv, env=env, stdin=pipe, stdout=pipe, stderr=log))

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._processes, signal.SIGTERM)
        for process in self._processes:
            process.communicate()
        self._folder.cleanup()

    def ask(self, order: Any, kind: type[T]) -> list[T]:
        """One order to all ranks; their replies in rank order."""
        for rank, process in enumerate(self._processes):
            assert process.stdin is not None
            try:
                process.stdin.write(msgspec.json.encode(order) + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise BenchError(f"{self.name!r} ended early: {self._last_words(rank)}") from None
        return self.hear(kind)

    def hear(self, kind: type[T]) -> list[T]:
        """What every rank says next, in rank order."""
        alarm = threading.Timer(PATIENCE, end, args=(self._processes, signal.SIGKILL))
        alarm.start()
        lines: dict[int, bytes] = {}
        try:
            with selectors.DefaultSelector() as waiting:
                for rank, process in enumerate(self._processes):
                    waiting.register(process.stdout, selectors.EVENT_READ, rank)  # type: ignore[arg-type]
                while len(lines) < len(self._processes):
                    for key, _ in waiting.select():
                        line: bytes = key.fileobj.readline()  # type: ignore[union-attr]
                        if not line:  # at once: the others may wait for this one for a long time
                            raise BenchError(f"{self.name!r} failed on rank {key.data}: {self._last_words(key.data)}")
                        lines[key.data] = line
                        waiting.unregister(key.fileobj)
        finally:
            alarm.cancel()
        return [msgspec.json.decode(lines[rank], type=kind) for rank in sorted(lines)]

    def said(self, rank: int) -> list[str]:
        """What the rank has written to its standard error so far."""
        return self._log(rank).read_text(errors="replace").splitlines()

    def verdicts(self, since: int = 0) -> list[str]:
        """What rank 0 found, chose or keeps, and why, each once; `since` leaves its first lines out."""
        lines = [line.removeprefix(VERDICT) for line in self.said(0)[since:] if line.startswith(VERDICT)]
        return list(dict.fromkeys(lines))

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name, str(rank))

    def _last_words(self, rank: int) -> str:
        """The rank's last line, once it has had time to write it."""
        end(self._processes[rank : rank + 1], signal.SIGTERM)
        return _last_line(self._log(rank).read_bytes())


@contextmanager
def hubs_running(lab: Hosts, *arguments: str) -> Iterator[Sequence[str]]:
    """`dovetail hub` on the lab's hub hosts while the block runs, for all that want it; gives their addresses."""
    with tempfile.TemporaryFile() as log:
        hubs = start_hubs(lab, *arguments, stdout=subprocess.PIPE, stderr=log)
        try:
            for hub in hubs:
                assert hub.stdout is not None
                if b"ready" not in hub.stdout.readline():
                    log.seek(0)
                    raise BenchError(f"the hub did not start: {_last_line(log.read())}")
            yield [lab.hub_address(hub) for hub in lab.hubs]
        finally:
            end(hubs, signal.SIGTERM)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
