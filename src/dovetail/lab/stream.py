"""A plain TCP stream between two hosts of a lab, as a yardstick: what the link really carries.

Runs as a script on the hosts, with nothing but the standard library, so that it starts at once.
"""

from __future__ import annotations

import json
import socket
import sys
import time

BLOCK = 256 * 1024


def receive(address: str) -> None:
    """Take one stream and print its bytes per second, without its first fifth (TCP's start)."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        buffer = bytearray(BLOCK)
        arrivals: list[tuple[float, int]] = []
        total = 0
        with connection:
            while count := connection.recv_into(buffer):
                total += count
                arrivals.append((time.monotonic(), total))
    start, end = arrivals[0][0], arrivals[-1][0]
    settled = start + (end - start) / 5
    before, skipped = next((t, b) for t, b in arrivals if t >= settled)
    print(json.dumps((total - skipped) / (end - before) if end > before else 0.0), flush=True)


def send(address: str, port: int, seconds: float) -> None:
    """Send as fast as TCP lets us for `seconds`."""
    block = memoryview(bytes(BLOCK))
    with socket.create_connection((address, port), timeout=10) as connection:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(block)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
