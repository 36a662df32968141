"""Latency and bandwidth of every pair of hosts over plain TCP, disjoint pairs at once; all its sockets are here."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from dovetail.errors import BadInput, Unreachable
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.measure import Store

ECHO_BYTES = 32
TOKEN_BYTES = 16
ATTEMPTS = 3
PERCENTILE = 10  # of the round trips: what the way takes when nobody else is on it
_ECHO, _SINK, _SOURCE = 1, 2, 3
_REQUEST = struct.Struct("!BI")  # kind, bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One pair: seconds one way, bytes per second there and back; or what went wrong."""

    latency: float = 0.0
    there: float = 0.0
    back: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much a pair is probed."""

    echoes: int = 300
    bulk: int = 4 * 1024 * 1024  # bytes each way; 0 = latency only
    patience: float = 10.0  # seconds without an answer after which an attempt has failed

    def __post_init__(self) -> None:
        if self.echoes < 1 or self.bulk < 0 or not self.patience > 0:
            raise BadInput(f"probes of {self.echoes} echoes and {self.bulk} bytes; give 1 or more, and 0 or more")


def matchings(nodes: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs in which every pair meets once: n - 1 rounds, or n when n is odd."""
    if nodes < 2:
        return []
    seats: list[int | None] = [*range(nodes)] + [None] * (nodes % 2)
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def assemble(hosts: Sequence[str], readings: dict[tuple[int, int], Reading]) -> ProbeMatrix:
    """The matrix of all readings; a pair that failed is named, never filled in."""
    count = len(hosts)
    latency, bandwidth = np.zeros((count, count)), np.zeros((count, count))
    failed = []
    for a in range(count):
        for b in range(a + 1, count):
            reading = readings.get((a, b), Reading(trouble="never probed"))
            if reading.trouble:
                failed.append(f"{hosts[a]} - {hosts[b]} ({reading.trouble})")
            latency[a, b] = latency[b, a] = reading.latency
            bandwidth[a, b], bandwidth[b, a] = reading.there, reading.back
    if failed:
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        raise Unreachable(
            f"no probe got through in {ATTEMPTS} attempts: {', '.join(failed[:3])}{more}; check the hosts"
        )
    with_bandwidth = bool((bandwidth[~np.eye(count, dtype=bool)] > 0).all())
    return ProbeMatrix.from_arrays(hosts, latency, bandwidth if with_bandwidth else None)


def probe_all(
    store: Store,
    *,
    rank: int,
    hosts: Sequence[str],
    address: str,
    effort: Effort,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ProbeMatrix:
    """Probe every pair; every rank calls this with its own `address`, and gets the whole matrix."""
    count = len(hosts)
    with socket.create_server((address, 0), backlog=count) as listener:
        token = secrets.token_bytes(TOKEN_BYTES)
        threading.Thread(target=serve, args=(listener, token, effort.patience), daemon=True).start()
        store.set(f"probe/at/{rank}", f"{address} {listener.getsockname()[1]} {token.hex()}")
        rounds = matchings(count)
        for number, pairs in enumerate(rounds):
            _meet(store, f"probe/round/{number}", count)
            for a, b in pairs:
                if a == rank:
                    host, port, shown = store.get(f"probe/at/{b}").decode().split()
                    reading = probe_pair((host, int(port)), bytes.fromhex(shown), effort)
                    store.set(f"probe/pair/{a}/{b}", msgspec.json.encode(reading).decode())
            progress(number + 1, len(rounds))
        _meet(store, "probe/end", count)
    readings = {
        (a, b): msgspec.json.decode(store.get(f"probe/pair/{a}/{b}"), type=Reading)
        for a in range(count)
        for b in range(a + 1, count)
    }
    _meet(store, "probe/read", count)
    if rank == 0:  # the store may live in this process: the others must be past their last look at it
        for other in range(1, count):
            store.get(f"probe/left/{other}")
    else:
        store.set(f"probe/left/{rank}", "")
    return assemble(hosts, readings)


def _meet(store: Store, name: str, count: int) -> None:
    if store.add(f"{name}/arrived", 1) == count:
        store.set(f"{name}/go", "")
    store.get(f"{name}/go")


def probe_pair(target: tuple[str, int], token: bytes, effort: Effort) -> Reading:
    """Probe one server; a lost or late answer is tried again on a new connection."""
    trouble = ""
    for _ in range(ATTEMPTS):
        try:
            with socket.create_connection(target, timeout=effort.patience) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(token)
                return _read(sock, effort)
        except OSError as error:
            trouble = str(error) or type(error).__name__
    return Reading(trouble=trouble)


def _read(sock: socket.socket, effort: Effort) -> Reading:
    trips = [_echo(sock) for _ in range(effort.echoes)]
    trip = float(np.percentile(trips, PERCENTILE))
    if effort.bulk == 0:
        return Reading(latency=trip / 2)
    _sink(sock, effort.bulk // 4)  # slow start does not count
    there = _sink(sock, effort.bulk)
    _source(sock, effort.bulk // 4)
    back = _source(sock, effort.bulk)
    # An answer's way there and back is part of each time, and no part of the bandwidth.
    rates = [effort.bulk / max(seconds - trip, 0.1 * seconds) for seconds in (there, back)]
    return Reading(latency=trip / 2, there=rates[0], back=rates[1])


def _echo(sock: socket.socket) -> float:
    started = time.perf_counter()
    sock.sendall(_REQUEST.pack(_ECHO, ECHO_BYTES) + bytes(ECHO_BYTES))
    _receive(sock, ECHO_BYTES)
    return time.perf_counter() - started


def _sink(sock: socket.socket, nbytes: int) -> float:
    started = time.perf_counter()
    sock.sendall(_REQUEST.pack(_SINK, nbytes))
    sock.sendall(bytes(nbytes))
    _receive(sock, 1)
    return time.perf_counter() - started


def _source(sock: socket.socket, nbytes: int) -> float:
    started = time.perf_counter()
    sock.sendall(_REQUEST.pack(_SOURCE, nbytes))
    _receive(sock, nbytes)
    return time.perf_counter() - started


def serve(listener: socket.socket, token: bytes, patience: float) -> None:
    """Answer probes of those who know the token, until the listener is closed."""
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(sock, token, patience), daemon=True).start()


def _answer(sock: socket.socket, token: bytes, patience: float) -> None:
    try:
        with sock:
            sock.settimeout(patience)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not secrets.compare_digest(_receive(sock, TOKEN_BYTES), token):
                return
            while True:
                kind, nbytes = _REQUEST.unpack(_receive(sock, _REQUEST.size))
                if kind == _ECHO:
                    sock.sendall(_receive(sock, min(nbytes, ECHO_BYTES)))
                elif kind == _SINK:
                    _drain(sock, nbytes)
                    sock.sendall(b"\0")
                else:
                    sock.sendall(bytes(nbytes))
    except OSError:
        return  # the prober has what it wanted, or tries again by itself


def _receive(sock: socket.socket, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if got == 0:
            raise ConnectionError("it closed the connection")
        view = view[got:]
    return bytes(data)


def _drain(sock: socket.socket, nbytes: int) -> None:
    room = bytearray(min(nbytes, 1 << 18) or 1)
    while nbytes:
        got = sock.recv_into(room, min(nbytes, len(room)))
        if got == 0:
            raise ConnectionError("it closed the connection")
        nbytes -= got
