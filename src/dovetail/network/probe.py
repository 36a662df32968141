"""Latency and bandwidth of every pair of hosts over plain TCP, disjoint pairs at once; all its sockets are here."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    passes: int = 3  # times a pair is probed, with other pairs at the same time
    patience: float = 10.0  # seconds without an answer after which an attempt has failed

    def __post_init__(self) -> None:
        if min(self.echoes, self.passes) < 1 or self.bulk < 0 or not self.patience > 0:
            raise BadInput(
                f"{self.passes} passes of {self.echoes} echoes and {self.bulk} bytes; give 1, 1 and 0 or more"
            )


def passes_for(nodes: int) -> int:
    """How often to probe a pair, so that it meets others on its way: with few hosts, chance decides who they are."""
    return max(3, min(8, round(48 / nodes)))


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


def schedule(nodes: int, passes: int) -> list[list[tuple[int, int]]]:
    """The rounds of all passes; from the second on with nodes renumbered, so that other pairs run side by side."""
    found = []
    for number in range(passes):
        name = np.random.default_rng(number).permutation(nodes).tolist() if number else list(range(nodes))
        found += [
            sorted((min(name[a], name[b]), max(name[a], name[b])) for a, b in pairs) for pairs in matchings(nodes)
        ]
    return found


def combine(readings: Sequence[Reading]) -> Reading:
    """One pair's passes: the least latency, since queues only add; the least bandwidth, since links are shared."""
    if trouble := next((r.trouble for r in readings if r.trouble), ""):
        return Reading(trouble=trouble)
    return Reading(
        latency=min(r.latency for r in readings),
        there=min(r.there for r in readings),
        back=min(r.back for r in readings),
    )


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
        rounds = schedule(count, effort.passes)
        for number, pairs in enumerate(rounds):
            _meet(store, f"probe/round/{number}", count)
            for a, b in pairs:
                if a == rank:
                    host, port, shown = store.get(f"probe/at/{b}").decode().split()
                    reading = probe_pair((host, int(port)), bytes.fromhex(shown), effort)
                    store.set(f"probe/pair/{number}/{a}/{b}", msgspec.json.encode(reading).decode())
            progress(number + 1, len(rounds))
        _meet(store, "probe/end", count)
    taken: dict[tuple[int, int], list[Reading]] = {}
    for number, pairs in enumerate(rounds):
        for a, b in pairs:
            text = store.get(f"probe/pair/{number}/{a}/{b}")
            taken.setdefault((a, b), []).append(msgspec.json.decode(text, type=Reading))
    _meet(store, "probe/read", count)
    if rank == 0:  # the store may live in this process: the others must be past their last look at it
        for other in range(1, count):
            store.get(f"probe/left/{other}")
    else:
        store.set(f"probe/left/{rank}", "")
    return assemble(hosts, {pair: combine(found) for pair, found in taken.items()})


def _meet(store: Store, name: str, count: int) -> None:
    if store.add(f"{name}/arrived", 1) == count:
        store.set(f"{name}/go", "")
    store.get(f"{name}/go")


def probe_pair(target: tuple[str, int], token: bytes, effort: Effort) -> Reading:
    """Probe one server; a lost or late answer is tried again on new connections."""
    trouble = ""
    for _ in range(ATTEMPTS):
        try:
            with _connect(target, token, effort) as sock:
                trip = float(np.percentile([_echo(sock) for _ in range(effort.echoes)], PERCENTILE))
                if effort.bulk == 0:
                    return Reading(latency=trip / 2)
                with _connect(target, token, effort) as second, ThreadPoolExecutor(1) as pool:
                    # Both ways at once, as collectives use them: half of what a shared uplink is asked for otherwise.
                    back = pool.submit(_bulk, _source, second, effort.bulk, trip)
                    return Reading(latency=trip / 2, there=_bulk(_sink, sock, effort.bulk, trip), back=back.result())
        except OSError as error:
            trouble = str(error) or type(error).__name__
    return Reading(trouble=trouble)


def _connect(target: tuple[str, int], token: bytes, effort: Effort) -> socket.socket:
    sock = socket.create_connection(target, timeout=effort.patience)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(token)
    return sock


def _bulk(transfer: Callable[[socket.socket, int], float], sock: socket.socket, nbytes: int, trip: float) -> float:
    """Bytes per second; the first quarter is sent once more before, because slow start does not count."""
    transfer(sock, nbytes // 4)
    seconds = transfer(sock, nbytes)
    # An answer's way there and back is part of the time, and no part of the bandwidth.
    return nbytes / max(seconds - trip, 0.1 * seconds)


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
