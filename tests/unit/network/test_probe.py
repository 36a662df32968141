"""Every pair meets once, failures are named, and readings over loopback make sense."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dovetail.errors import BadInput, Unreachable
from dovetail.network.draw import probe_page
from dovetail.network.group import group_hosts
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.probe import (
    ATTEMPTS,
    Effort,
    Reading,
    assemble,
    combine,
    matchings,
    passes_for,
    probe_all,
    probe_pair,
    schedule,
    serve,
)

QUICK = Effort(echoes=20, bulk=1 << 16, patience=2.0)


@pytest.mark.parametrize("nodes", range(13))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(nodes: int) -> None:
    rounds = matchings(nodes)
    assert len(rounds) == (nodes - 1 + nodes % 2 if nodes > 1 else 0)
    for pairs in rounds:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))
        assert len(pairs) == nodes // 2
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]


def test_passes_probe_each_pair_again_beside_other_pairs() -> None:
    rounds = schedule(8, 3)
    assert len(rounds) == 21
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == sorted([(a, b) for a in range(8) for b in range(a + 1, 8)] * 3)
    beside = {tuple(pairs) for pairs in rounds if (0, 1) in pairs}
    assert len(beside) > 1


def test_passes_combine_to_the_shortest_way_and_the_thinnest_share() -> None:
    first, second = Reading(latency=2.0, there=5.0, back=9.0), Reading(latency=3.0, there=7.0, back=8.0)
    assert combine([first, second]) == Reading(latency=2.0, there=5.0, back=8.0)
    assert combine([first, Reading(trouble="timed out")]).trouble == "timed out"


def test_assemble_is_symmetric_and_keeps_the_worse_way() -> None:
    found = assemble(["a", "b"], {(0, 1): Reading(latency=1e-4, there=5.0, back=3.0)})
    assert found == ProbeMatrix(hosts=("a", "b"), latency=((0, 1e-4), (1e-4, 0)), bandwidth=((0, 3.0), (3.0, 0)))
    only_latency = assemble(["a", "b"], {(0, 1): Reading(latency=1e-4)})
    assert only_latency.bandwidth == ()


def test_a_failed_pair_is_named() -> None:
    good = Reading(latency=1.0, there=1.0, back=1.0)
    with pytest.raises(Unreachable, match=r"b - c \(timed out\)"):
        assemble("abc", {(0, 1): good, (0, 2): good, (1, 2): Reading(trouble="timed out")})
    with pytest.raises(Unreachable, match=r"a - c \(never probed\)"):
        assemble("abc", {(0, 1): good, (1, 2): good})


@contextmanager
def server(token: bytes) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener, token, 2.0), daemon=True).start()
        yield listener.getsockname()


def test_a_pair_over_loopback() -> None:
    token = secrets.token_bytes(16)
    with server(token) as target:
        reading = probe_pair(target, token, QUICK)
        only_latency = probe_pair(target, token, Effort(echoes=5, bulk=0))
        stranger = probe_pair(target, secrets.token_bytes(16), QUICK)
    assert reading.trouble == ""
    assert 0 < reading.latency < 0.1
    assert min(reading.there, reading.back) > 1e5
    assert only_latency.there == 0 < only_latency.latency
    assert stranger.trouble


def test_a_lost_probe_is_tried_again() -> None:
    """The first connections are cut; the last attempt gets through."""
    token = secrets.token_bytes(16)
    with server(token) as real, socket.create_server(("127.0.0.1", 0)) as front:
        taken: list[socket.socket] = []

        def cut_then_pass() -> None:
            for _ in range(ATTEMPTS - 1):
                front.accept()[0].close()
            for _ in range(2):  # one connection for echoes and the way there, one for the way back
                client, _ = front.accept()
                behind = socket.create_connection(real)
                taken.extend((client, behind))
                for source, target in ((client, behind), (behind, client)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()

        threading.Thread(target=cut_then_pass, daemon=True).start()
        reading = probe_pair(front.getsockname(), token, QUICK)
        for sock in taken:
            sock.close()
    assert reading.trouble == ""
    assert reading.latency > 0


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        return


class MemoryStore:
    """torch's store, for threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout=20), key
            return self._values[key]

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            self._counts[key] = self._counts.get(key, 0) + amount
            return self._counts[key]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_pairs_over_loopback(count: int) -> None:
    store, found = MemoryStore(), {}
    hosts = [f"h{i}" for i in range(count)]

    def one(rank: int) -> None:
        found[rank] = probe_all(store, rank=rank, hosts=hosts, address="127.0.0.1", effort=QUICK)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == list(range(count))
    assert all(matrix == found[0] for matrix in found.values())
    off = ~np.eye(count, dtype=bool)
    assert (np.array(found[0].latency)[off] > 0).all()


def test_page_shows_every_host_and_group() -> None:
    home = np.arange(8) % 2
    latency = np.where(home[:, None] == home[None], 50e-6, 150e-6) + np.eye(8) * 0
    matrix = ProbeMatrix.from_arrays([f"host-{i}" for i in range(8)], latency, np.full((8, 8), 1e9))
    page = probe_page(matrix, group_hosts(matrix))
    assert "8 hosts in 2 groups" in page
    assert all(f"host-{i}" in page for i in range(8))


def test_bad_effort() -> None:
    with pytest.raises(BadInput, match="0 echoes"):
        Effort(echoes=0)


def test_few_hosts_are_probed_more_often() -> None:
    assert [passes_for(n) for n in (2, 8, 16, 500)] == [8, 6, 3, 3]
