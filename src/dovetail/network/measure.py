"""Times transfers between the ranks of a job over plain TCP; all sockets of the fit are in this file."""

from __future__ import annotations

import itertools
import secrets
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import msgspec

from dovetail.errors import BadInput, PeerLost, Unreachable
from dovetail.network.fit import LARGE, SMALL, Sample, fit_link
from dovetail.network.model import Link

PATIENCE = 60.0  # seconds a peer may stay silent
GREETING = 3.0  # seconds a new connection may take to show the token, while the real peer queues behind it
SMALL_REPEATS, LARGE_REPEATS = 200, 8
WARM_UP = 2  # transfers of each size that do not count: slow start, a full token bucket
PARTNERS = 3  # partners each rank is measured with, if there are as many
TOKEN_BYTES = 16


class Store(Protocol):
    """What torch.distributed's stores offer; `get` waits for the key."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The link between two ranks as measured."""

    first: int
    second: int
    link: Link
    error: float  # mean relative distance of a timing from the fit


def measure(sock: socket.socket) -> list[Sample]:
    """Time transfers to a peer that runs `answer`.

    Small ones go to and fro, and half a round trip is one. Large ones follow each other without a pause, since a
    shaper saves up credit in pauses; the peer times them, and the startup each would pay alone is added.
    """
    data = bytearray(SMALL)
    trips: list[float] = []
    for _ in range(WARM_UP + SMALL_REPEATS):
        start = time.perf_counter()
        sock.sendall(data)
        _receive(sock, data)
        trips.append((time.perf_counter() - start) / 2)
    small = trips[WARM_UP:]
    data = bytearray(LARGE)
    for _ in range(WARM_UP + LARGE_REPEATS):
        sock.sendall(data)
    gaps = bytearray(8 * LARGE_REPEATS)
    _receive(sock, gaps)
    startup = statistics.median(small)
    large = [gap + startup for gap in struct.unpack(f"!{LARGE_REPEATS}d", gaps)]
    return [(SMALL, seconds) for seconds in small] + [(LARGE, seconds) for seconds in large]


def answer(sock: socket.socket) -> None:
    """The other end of `measure`: returns the small transfers, and the times between the ends of the large ones."""
    data = bytearray(SMALL)
    for _ in range(WARM_UP + SMALL_REPEATS):
        _receive(sock, data)
        sock.sendall(data)
    data = bytearray(LARGE)
    ends: list[float] = []
    for _ in range(WARM_UP + LARGE_REPEATS):
        _receive(sock, data)
        ends.append(time.perf_counter())
    gaps = [after - before for before, after in itertools.pairwise(ends)][-LARGE_REPEATS:]
    sock.sendall(struct.pack(f"!{LARGE_REPEATS}d", *gaps))


def measure_pairs(store: Store, *, rank: int, world: int, host: str, partners: int = PARTNERS) -> tuple[Pair, ...]:
    """Measure every rank with a few partners, disjoint pairs at once; all ranks call this, all get the result."""
    if world < 2:
        raise BadInput(f"a job of {world} rank has no link to measure; start 2 ranks or more")
    with socket.create_server((host, 0)) as listener:
        listener.settimeout(PATIENCE)
        token = secrets.token_bytes(TOKEN_BYTES)
        store.set(f"address/{rank}", f"{host} {listener.getsockname()[1]} {token.hex()}")
        for number, pairs in enumerate(rounds(world, partners)):
            _barrier(store, f"round/{number}", world)
            mine = next((pair for pair in pairs if rank in pair), None)
            if mine is None:
                continue
            try:
                _one_pair(store, listener, token, mine, rank)
            except OSError as error:
                other = mine[0] if rank == mine[1] else mine[1]
                raise PeerLost(f"rank {other}: {error} while its link was measured", peer=other) from None
    found = tuple(
        msgspec.json.decode(store.get(f"pair/{a}/{b}"), type=Pair)
        for pairs in rounds(world, partners)
        for a, b in pairs
    )
    store.set(f"left/{rank}", "")
    if rank == 0:  # the store may live in this process: leave last
        for other in range(world):
            store.get(f"left/{other}")
    return found


def rounds(world: int, partners: int = PARTNERS) -> Iterator[list[tuple[int, int]]]:
    """Disjoint pairs, round after round, no pair twice (the circle method), and nobody without any."""
    seats: list[int | None] = list(range(world))
    if world % 2:
        seats.append(None)
    for _ in range(min(max(partners, 1 + world % 2), len(seats) - 1)):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def host_links(pairs: tuple[Pair, ...], world: int) -> tuple[Link, ...]:
    """A pair is as fast as its slower end, so a rank's own link is that of its fastest pair."""
    return tuple(
        max((p.link for p in pairs if rank in (p.first, p.second)), key=lambda link: link.bandwidth)
        for rank in range(world)
    )


def route_address(host: str, port: int) -> str:
    """This machine's address on the route to `host`, so that the network measured is the one the job uses."""
    try:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unreachable(f"no route to {host}:{port}: {error}; check MASTER_ADDR and MASTER_PORT") from None


def _one_pair(store: Store, listener: socket.socket, token: bytes, pair: tuple[int, int], rank: int) -> None:
    first, second = pair
    if rank == second:
        with _accept(listener, token) as sock:
            answer(sock)
        return
    host, port, expected = store.get(f"address/{second}").decode().split()
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(bytes.fromhex(expected))
        link, error = fit_link(measure(sock))
    store.set(
        f"pair/{first}/{second}", msgspec.json.encode(Pair(first=first, second=second, link=link, error=error)).decode()
    )


def _accept(listener: socket.socket, token: bytes) -> socket.socket:
    """The next connection that knows the token; others are dropped."""
    while True:
        sock, _ = listener.accept()
        sock.settimeout(GREETING)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shown = bytearray(TOKEN_BYTES)
        try:
            _receive(sock, shown)
        except OSError:
            shown.clear()
        if secrets.compare_digest(bytes(shown), token):
            sock.settimeout(PATIENCE)
            return sock
        sock.close()


def _receive(sock: socket.socket, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise ConnectionError("it closed the connection")
        view = view[count:]


def _barrier(store: Store, name: str, world: int) -> None:
    if store.add(f"{name}/arrived", 1) == world:
        store.set(f"{name}/go", "")
    store.get(f"{name}/go")
