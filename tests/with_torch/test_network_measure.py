"""`dovetail network` between real processes on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dovetail import codec
from dovetail.errors import PeerLost
from dovetail.network import measure
from dovetail.network.model import Cluster


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_two_ranks_measure_their_links(tmp_path: Path) -> None:
    target = tmp_path / "cluster.json"
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "dovetail.cli.main", "network", "-o", str(target)]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **job, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    cluster = codec.load(Cluster, target)
    assert len(cluster.workers) == 2
    assert all(host.link.bandwidth > 1e7 for host in cluster.workers)
    assert said[0].count("error of the fit") == 1
    assert said[1] == ""


class DictStore:
    """torch's store in one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key].encode()

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            count = int(self._values.get(key, "0")) + amount
            self._values[key] = str(count)
            return count


def test_strangers_on_the_port_are_dropped_and_a_silent_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PATIENCE", 0.5)
    store = DictStore()
    store.add("round/0/arrived", 1)  # rank 0 comes to the meeting and then never connects
    caught: list[PeerLost] = []

    def rank_one() -> None:
        try:
            measure.measure_pairs(store, rank=1, world=2, host="127.0.0.1")
        except PeerLost as error:
            caught.append(error)

    thread = threading.Thread(target=rank_one)
    thread.start()
    host, port, _ = store.get("address/1").decode().split()
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        assert stranger.recv(1) == b""
    thread.join(timeout=10)
    assert caught[0].peer == 0
    assert "rank 0" in str(caught[0])
