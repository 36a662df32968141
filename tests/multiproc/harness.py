"""Ranks as real processes, on lab hosts or on loopback: start, kill, and wait with a bound; nothing is left running.

    def push_forever(rank, size): ...

    with ranks(3, push_forever, gloo=True) as group:
        group.wait_for("pushing", within=30)      # every rank has called reach("pushing")
        group.kill(0)
        assert group.errors(within=5) == {1: PeerLost, 2: PeerLost}

The function is found again by its file and name, so it must be at the top level of its module.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import inspect
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from nursery import Forked, Nursery, die_with_parent, serve

from dovetail.lab import Lab, environment

_FOLDER = "DOVETAIL_TEST_FOLDER"
_nursery = Nursery()
LINES = 60  # of a rank's output that a failure shows


class NotEnded(Exception):
    """Stands for a rank that was still running when the time was over."""


class Group:
    """The running ranks; every wait has a bound."""

    def __init__(self, processes: list[subprocess.Popen[bytes] | Forked], folder: Path) -> None:
        self.processes = processes
        self.killed: set[int] = set()
        self._folder = folder
        self._late: dict[int, float] = {}  # ranks that were still running when the time was over -> seconds given

    def kill(self, rank: int, sign: signal.Signals = signal.SIGKILL) -> None:
        """End a rank without warning, or send it another signal (SIGSTOP makes it fall silent)."""
        os.killpg(self.processes[rank].pid, sign)
        self.killed.add(rank)

    def wait_for(self, name: str, *, within: float, ranks: int | None = None) -> None:
        """Wait until all ranks (or `ranks` of them) have called `reach(name)`."""
        needed = len(self.processes) if ranks is None else ranks
        until = time.monotonic() + within
        while len(list(self._folder.glob(f"reached-{name}-*"))) < needed:
            ended = [r for r in self._alive_or_not() if r not in self.killed and self.processes[r].poll()]
            assert not ended, f"rank {ended[0]} ended before {name!r}:\n{self.output(ended[0])}"
            assert time.monotonic() < until, f"{name!r} was not reached within {within} s:\n{self._all_output()}"
            time.sleep(0.01)

    def errors(self, *, within: float) -> dict[int, type[BaseException]]:
        """Of each rank that was not killed, the class of what it raised; NotEnded for those that run on."""
        self._wait(within)
        return {r: type(self._outcome(r)[1]) for r in self._survivors() if self._outcome(r)[0] == "error"}

    def messages(self) -> dict[int, str]:
        """Of each rank that was not killed and raised, what its error says."""
        return {r: str(self._outcome(r)[1]) for r in self._survivors() if self._outcome(r)[0] == "error"}

    def results(self, timeout: float) -> list[Any]:
        """What the function returned on each rank (None for a killed one); any error fails the test."""
        self._wait(timeout)
        for rank in self._survivors():
            assert self._outcome(rank)[0] == "result", f"rank {rank} {self._fate(rank)}:\n{self.output(rank)}"
        return [None if r in self.killed else self._outcome(r)[1] for r in self._alive_or_not()]

    def output(self, rank: int) -> str:
        """What the rank wrote, its last lines; what C++ says before it ends the process is among them."""
        lines = (self._folder / f"output-{rank}").read_text(errors="replace").splitlines()
        words = [line for line in lines[:-LINES] if "terminate called" in line or line.lstrip().startswith("what():")]
        return "\n".join((*words, *lines[-LINES:]))

    def close(self) -> None:
        """End all that still runs."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)

    def _alive_or_not(self) -> range:
        return range(len(self.processes))

    def _fate(self, rank: int) -> str:
        """How a rank without a result ended, in words."""
        if rank in self._late:
            return f"was still running after {self._late[rank]:g} s; it stood here"
        return f"failed (exit code {self.processes[rank].poll()})"

    def _survivors(self) -> list[int]:
        return [r for r in self._alive_or_not() if r not in self.killed]

    def _all_output(self) -> str:
        return "\n".join(f"--- rank {r}\n{self.output(r)}" for r in self._alive_or_not())

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for rank in self._survivors():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[rank].wait(max(0.0, until - time.monotonic()))
        for rank in self._survivors():
            if self.processes[rank].poll() is None:
                self._late[rank] = seconds
                os.killpg(self.processes[rank].pid, signal.SIGABRT)  # faulthandler writes where it stood

    def _outcome(self, rank: int) -> tuple[str, Any]:
        path = self._folder / f"outcome-{rank}"
        if not path.exists():
            return "error", NotEnded(f"rank {rank} gave no result; exit code {self.processes[rank].poll()}")
        outcome: tuple[str, Any] = pickle.loads(path.read_bytes())
        return outcome


@contextlib.contextmanager
def ranks(
    size: int,
    function: Callable[..., Any],
    *,
    hosts: Lab | None = None,
    args: tuple[Any, ...] = (),
    gloo: bool = False,
    env: dict[str, str] | None = None,
) -> Iterator[Group]:
    """Run `function(rank, size, *args)` in `size` fresh processes; with `gloo`, torch's process group is up.

    On loopback they are forks of the nursery; on hosts, or with variables of their own, new processes.
    """
    folder = Path(tempfile.mkdtemp(prefix="dovetail-ranks-"))
    (folder / "call").write_bytes(pickle.dumps((inspect.getfile(function), function.__name__, args, gloo)))
    port = free_port()
    processes: list[subprocess.Popen[bytes] | Forked] = []
    group = Group(processes, folder)
    try:
        for rank in range(size):
            variables = {
                **_environment(rank, size, port, hosts),
                **(env or {}),
                _FOLDER: str(folder),
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            }
            argv = [sys.executable, __file__]
            said = folder / f"output-{rank}"
            if hosts is None and not env:
                processes.append(_nursery.fork(variables, said, folder / f"exit-{rank}"))
                continue
            with said.open("wb") as output:
                options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                if hosts is not None:
                    processes.append(hosts.popen(rank, argv, env=variables, **options))
                else:
                    whole = {**os.environ, **variables}
                    processes.append(subprocess.Popen(argv, env=whole, start_new_session=True, **options))
        yield group
    finally:
        group.close()
        shutil.rmtree(folder, ignore_errors=True)


def reach(name: str) -> None:
    """Called in a rank: tell the test that this point is reached."""
    Path(os.environ[_FOLDER], f"reached-{name}-{os.environ['RANK']}").touch()


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _environment(rank: int, size: int, port: int, hosts: Lab | None) -> dict[str, str]:
    common = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if hosts is not None:
        return {**common, **environment(hosts, rank), "WORLD_SIZE": str(size)}
    local = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    return {**common, **local, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}


def meet(backend: str, life: str) -> None:
    """Start torch's default group in a rank, also again: each life has keys of its own in one store.

    At torch's usual store a rank that is early meets the last group's.
    """
    import torch.distributed as dist

    store = dist.PrefixStore(life, _store())
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))


@cache
def _store() -> Any:
    import torch.distributed as dist

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    size, keeps = int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    return dist.TCPStore(address, port, size, keeps, timedelta(seconds=20))


def _child() -> None:
    """The other side: find the function, call it, and leave its outcome in the folder."""
    die_with_parent()
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    rank, size, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(os.environ[_FOLDER])
    file, name, args, gloo = pickle.loads((folder / "call").read_bytes())
    try:
        function = _load(file, name)
        if gloo:
            import torch.distributed as dist

            dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        outcome = ("result", function(rank, size, *args))
    except BaseException as error:
        import traceback

        traceback.print_exc()
        outcome = ("error", error)
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
    except Exception as broken:
        data = pickle.dumps(("error", TypeError(f"outcome {outcome!r} cannot be handed over: {broken!r}")))
    partial = folder / f"partial-{rank}"
    partial.write_bytes(data)
    partial.rename(folder / f"outcome-{rank}")
    sys.stdout.flush()
    sys.stderr.flush()
    if gloo and rank == 0:
        _outlive(folder, size)
    # Not a plain exit: torch's threads may wait for a dead peer, and the outcome is already told.
    os._exit(0 if outcome[0] == "result" else 1)


def _outlive(folder: Path, size: int) -> None:
    """Rank 0 serves the store, so it leaves last; those that were killed are not waited for long."""
    end = time.monotonic() + 10
    others = [folder / f"outcome-{rank}" for rank in range(1, size)]
    while time.monotonic() < end and not all(path.exists() for path in others):
        time.sleep(0.02)


def _load(file: str, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(Path(file).parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, name)
    return function


if __name__ == "__main__":
    # Test modules import `harness` by name; this process must not hold a second copy of it.
    sys.modules["harness"] = sys.modules["__main__"]
    if sys.argv[1:] == ["nursery"]:
        serve(_child)
    else:
        _child()
