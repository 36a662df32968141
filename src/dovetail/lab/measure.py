"""What a lab's links really carry, by a plain TCP stream."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.lab import stream
from dovetail.lab.hosts import Hosts
from dovetail.lab.keeper import LabError
from dovetail.lab.run import end

_LIMIT = 20.0  # seconds past the stream's own length


def measure_rate(lab: Hosts, source: str | int, target: str | int, *, seconds: float = 1.0) -> float:
    """Bytes per second of one plain TCP stream from `source` to `target`."""
    script = [sys.executable, "-I", stream.__file__]
    receiver = lab.popen(target, [*script, "receive", lab.address(target)], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    port = receiver.stdout.readline().strip()
    sent = lab.run(source, [*script, "send", lab.address(target), port, str(seconds)], timeout=seconds + _LIMIT)
    if sent.returncode:
        raise LabError(f"no TCP stream from {source!r} to {target!r}: {sent.stderr.strip().splitlines()[-1]}")
    rate, _ = receiver.communicate(timeout=_LIMIT)
    return float(rate)


@contextmanager
def busy(lab: Hosts, count: int) -> Iterator[None]:
    """Plain TCP streams around the first `count` hosts while the block runs: every link is full, both ways."""
    script = [sys.executable, "-I", stream.__file__]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for source in range(count if count > 1 else 0):
            target = (source + 1) % count
            receiver = lab.popen(target, [*script, "receive", lab.address(target)], stdout=subprocess.PIPE)
            processes.append(receiver)
            assert receiver.stdout is not None
            sending = [*script, "send", lab.address(target), receiver.stdout.readline().decode().strip(), str(_LIMIT)]
            # Whichever end goes first, the other one's complaint is nobody's business.
            processes.append(lab.popen(source, sending, stderr=subprocess.DEVNULL))
        yield
    finally:
        end(processes, signal.SIGTERM)
        for process in processes:
            process.communicate()
