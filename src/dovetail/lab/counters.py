"""What the links of a lab carry over time, seen from the network's side: one reader for all hosts, none in their way.

Runs as a script inside the lab's network until its input ends, with nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

INTERVAL = 0.005  # seconds between samples


def read_devices(text: str) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by each device so far, from the text of /proc/net/dev."""
    rows = (line.split(":", 1) for line in text.splitlines()[2:])
    fields = ((name.strip(), values.split()) for name, values in rows)
    return {name: (int(values[0]), int(values[8])) for name, values in fields}


def sample_until_told() -> None:
    """Print a JSON list of [instant, {device: [received, sent]}], of samples that differ from the one before."""
    samples: list[tuple[float, dict[str, tuple[int, int]]]] = []
    last: dict[str, tuple[int, int]] = {}
    while not select.select([sys.stdin], [], [], INTERVAL)[0]:
        with open("/proc/net/dev") as devices:
            now, state = time.monotonic(), read_devices(devices.read())
        samples.append((now, {name: both for name, both in state.items() if last.get(name) != both}))
        last = state
    json.dump(samples, sys.stdout)


if __name__ == "__main__":
    try:
        sample_until_told()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever wanted the samples has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered must not fail at exit
