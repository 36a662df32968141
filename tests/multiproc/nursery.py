"""Where ranks come from: one process that has imported torch forks them, so that each starts in milliseconds.

Importing torch takes seconds of a core, in every rank of every test; a fork of a process that has done it, and has
started no thread, is as fresh as a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_POLL = 0.005  # seconds


class Forked:
    """A rank that the nursery forked; as much of `subprocess.Popen` as the harness uses."""

    def __init__(self, pid: int, exit_file: Path) -> None:
        self.pid = pid
        self._exit_file = exit_file
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None and self._exit_file.exists():
            self._code = int(self._exit_file.read_text())
        return self._code

    def wait(self, timeout: float) -> int:
        """The exit code once there is one."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"rank of pid {self.pid}", timeout)
            time.sleep(_POLL)
        return code


# torch imports pandas where it is installed, and that pyarrow (it comes with Ray), whose allocator starts a thread.
_NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


class Nursery:
    """The process that forks; started at the first fork, ended with the test run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def fork(self, env: Mapping[str, str], output: Path, exit_file: Path) -> Forked:
        """A rank with these variables besides ours; its exit code will stand in `exit_file`."""
        process = self._process or self._start(env)
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([dict(env), str(output), str(exit_file)]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        assert answer, f"the nursery of ranks ended with {process.poll()}"
        return Forked(int(answer), exit_file)

    def _start(self, env: Mapping[str, str]) -> subprocess.Popen[str]:
        argv = [sys.executable, str(Path(__file__).with_name("harness.py")), "nursery"]
        self._process = subprocess.Popen(
            argv, env={**os.environ, **_NO_THREADS, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._end)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)


def die_with_parent() -> None:
    """A test run that is itself killed must not leave ranks behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(child: Callable[[], None]) -> None:
    """The other side: fork a rank for every order that comes in, and note how each ends."""
    die_with_parent()
    import torch._dynamo
    import torch.distributed  # noqa: F401

    import dovetail.training.distribute  # noqa: F401

    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads run before the first fork; a rank would start with their locks held"
    exits: dict[int, Path] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(exits))
    for line in sys.stdin:
        env, output, exit_file = json.loads(line)
        # A rank that ends at once must find its place in `exits`.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            _become_a_rank(env, output, child)
        exits[pid] = Path(exit_file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)


def _reap(exits: dict[int, Path]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            exit_file = exits.pop(ended[0])
            with contextlib.suppress(FileNotFoundError):  # the test is over and its folder gone
                partial = exit_file.with_suffix(".partial")
                partial.write_text(str(os.waitstatus_to_exitcode(ended[1])))
                partial.rename(exit_file)


def _become_a_rank(env: dict[str, str], output: str, child: Callable[[], None]) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.setsid()
        os.environ.update(env)
        nothing, written = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target, source in ((0, nothing), (1, written), (2, written)):
            os.dup2(source, target)
        child()
    except BaseException:
        traceback.print_exc()
    os._exit(70)  # the child ends the process itself
