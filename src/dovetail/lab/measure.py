"""What a lab's links really carry, by a plain TCP stream."""

from __future__ import annotations

import subprocess
import sys

from dovetail.lab import stream
from dovetail.lab.hosts import Hosts
from dovetail.lab.keeper import LabError

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
