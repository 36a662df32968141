"""The hub as a process: jobs share it, strangers do not disturb it, and every refusal is one clear line."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodes import RunningHub, hub, open_rank, reduce_once, threads, values

from dovetail.engine.client import Client
from dovetail.engine.control import Create, Init, Intro, pack
from dovetail.engine.handshake import MAGIC, VERSION
from dovetail.engine.rule import Hyper, Rule
from dovetail.engine.session import Options, Session
from dovetail.errors import BadInput, Refused, Unreachable

SIZES = [3000, 50]


def job(service: RunningHub, folder: Path, rank: int, name: str, **more: Any) -> Session:
    more.setdefault("options", Options(patience=20))
    return open_rank(str(folder), rank, 2, SIZES, aggregation="hub", hubs=[service.address], namespace=name, **more)


def train(session: Session, rank: int, steps: range) -> float:
    """Mean of rank + 1 over two ranks, `steps` times; 1.5 if all is well."""
    found = set()
    for iteration in steps:
        mine = [np.full(n, rank + 1, dtype=np.float32) for n in SIZES]
        reduce_once(session, iteration, mine)
        found |= {float(x) for array in mine for x in (array[0], array[-1])}
    assert len(found) == 1
    return found.pop()


def raw(service: RunningHub) -> socket.socket:
    host, port = service.address.split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def test_jobs_with_other_names_share_a_hub_and_a_taken_name_is_refused(tmp_path: Path) -> None:
    with hub() as service:
        (tmp_path / "c").mkdir()

        def body(rank: int) -> Any:
            name = "ab"[rank // 2]
            (tmp_path / name).mkdir(exist_ok=True)
            with job(service, tmp_path / name, rank % 2, name) as session:
                first = train(session, rank % 2, range(1, 4))
                if rank == 0:
                    with pytest.raises(Refused, match=r"hub 0 at .*: the name 'a' is taken by a job of 2 ranks"):
                        open_rank(
                            str(tmp_path / "c"), 0, 1, SIZES, aggregation="hub", hubs=[service.address], namespace="a"
                        )
                return first, train(session, rank % 2, range(4, 6))

        assert values(4, body) == [(1.5, 1.5)] * 4


def test_noise_and_silence_on_the_port_do_not_disturb_a_job(tmp_path: Path) -> None:
    with hub() as service:
        idle = [raw(service) for _ in range(40)]
        noises = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(200), MAGIC + bytes([VERSION]) + b"\xff" * 400]

        def body(rank: int) -> float:
            with job(service, tmp_path, rank, "job") as session:
                first = train(session, rank, range(1, 3))
                for noise in noises:
                    with raw(service) as visitor:
                        visitor.sendall(noise)
                return first + train(session, rank, range(3, 6))

        begun = time.monotonic()
        assert values(2, body) == [3.0, 3.0]
        assert time.monotonic() - begun < 10
        for visitor in idle:
            visitor.close()
        assert service.process.poll() is None


def test_a_client_that_speaks_nonsense_after_the_handshake_is_closed_and_the_hub_lives(tmp_path: Path) -> None:
    import asyncio

    from dovetail.engine.links import Target, connect

    host, port = "127.0.0.1", 0
    with hub() as service:
        port = int(service.address.split(":")[1])
        target = Target(label="hub", host=host, port=port, secret="")
        bad_init = Init("d", b"not a table", Rule(), False, 1.0, 2, [], [])
        for words in (b"\xff" * 64, pack(bad_init), pack(Create("", 0)), pack(Create("x", 1))[:-1]):

            async def speak(data: bytes = words) -> None:
                wire = await connect(target, Intro("control"), seconds=5)
                await wire.write(data)
                await asyncio.sleep(0.05)
                wire.close()

            asyncio.run(speak())
        assert values(2, lambda rank: _once(service, tmp_path, rank)) == [1.5, 1.5]


def _once(service: RunningHub, folder: Path, rank: int, **more: Any) -> float:
    with job(service, folder, rank, "job", **more) as session:
        return train(session, rank, range(1, 3))


def test_a_wrong_secret_is_refused_on_every_rank_before_training(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    with hub("--secret-file", str(secret)) as service:
        for guess, folder in (("", "a"), ("sesam", "b")):
            (tmp_path / folder).mkdir()
            options = Options(secret=guess, patience=20)
            begun = time.monotonic()
            results = threads(2, lambda r, f=folder, o=options: _once(service, tmp_path / f, r, options=o))  # type: ignore[misc]
            assert [type(e) for e in results] == [Refused, Refused]
            assert all("wrong secret" in str(e) and service.address in str(e) for e in results)
            assert time.monotonic() - begun < 5
        (tmp_path / "c").mkdir()
        options = Options(secret="sesame", patience=20)
        assert values(2, lambda r: _once(service, tmp_path / "c", r, options=options)) == [1.5, 1.5]


def test_an_unreachable_hub_is_one_clear_line_on_every_rank(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"

    def body(rank: int) -> None:
        open_rank(str(tmp_path), rank, 2, SIZES, aggregation="hub", hubs=[address], options=Options(patience=1))

    results = threads(2, body)
    assert [type(e) for e in results] == [Unreachable, Unreachable]
    assert all(f"hub 0 at {address}" in str(e) for e in results)


def test_a_program_that_is_no_hub_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            visitor, _ = other.accept()
            visitor.sendall(b"SSH-2.0-Test\r\n")
            visitor.recv(1000)
            time.sleep(1)
            visitor.close()

        threading.Thread(target=greet, daemon=True).start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"hub 0 at {address}: .*does not speak dovetail's protocol"):
            open_rank(str(tmp_path), 0, 1, SIZES, aggregation="hub", hubs=[address], options=Options(patience=3))


def test_a_client_pulls_current_parameters_in_the_order_of_urgency(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        with job(service, tmp_path, rank, "job", rule=Rule(kind="sgd")) as session:
            mine = [np.full(n, 8.0, dtype=np.float32) for n in SIZES]
            for i, array in enumerate(mine):
                session.bind(i, array.ctypes.data)
                if rank == 0:
                    session.put(i, 0, array.ctypes.data)
            found = []
            for iteration in (1, 2):
                session.begin(iteration, [Hyper(lr=1.0)])
                session.release(iteration)
                grads = [np.full(n, 1.0 + rank, dtype=np.float32) for n in SIZES]
                for i, grad in enumerate(grads):
                    session.submit(i, iteration, grad.ctypes.data)
                session.backward_done(iteration)
                assert session.wait(range(2), iteration, timeout=20)
                if rank == 0:
                    with Client.connect([service.address], namespace="job") as client:
                        found.append(client.pull(version=iteration))
                        assert list(client.pull(["p1", "p0"])) == ["p0", "p1"]
                        with pytest.raises(BadInput, match="no parameter 'q'"):
                            client.pull(["q"])
            return found

    with hub("--cores", "2") as service:
        first, second = values(2, body)[0]
        for pulled, expected, step in ((first, 6.5, 1), (second, 5.0, 2)):
            assert [p.values.shape for p in pulled.values()] == [(3000,), (50,)]
            assert all((p.values == expected).all() and p.step == step for p in pulled.values())
        with pytest.raises(Refused, match="no job is called 'job'"):
            Client.connect([service.address], namespace="job")


def test_a_job_that_updates_at_its_workers_has_nothing_to_pull(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with job(service, tmp_path, rank, "job") as session:
            train(session, rank, range(1, 2))
            if rank == 0:
                with pytest.raises(Refused, match="holds no parameters"):
                    Client.connect([service.address], namespace="job")
            train(session, rank, range(2, 3))

    with hub() as service:
        values(2, body)


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with hub("--metrics-port", str(port)) as service:
        values(2, lambda rank: _once(service, tmp_path, rank))
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(figures["dovetail_hub_jobs_registered_total"]) == 1
        # Two ranks send every gradient twice.
        assert float(figures["dovetail_hub_received_bytes_total"]) >= 2 * 2 * 4 * sum(SIZES)


def run_hub(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dovetail.cli.main", "hub", "--bind", "127.0.0.1", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)


def test_a_full_port_and_a_bad_secret_file_are_one_line_each(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases: dict[tuple[str, ...], str] = {
            ("--port", str(port)): f"dovetail: cannot listen on 127.0.0.1:{port}: the port is in use",
            ("--port", "0", "--secret-file", str(tmp_path / "none")): "dovetail: cannot read the secret file",
        }
        for arguments, line in cases.items():
            ended = run_hub(*arguments)
            assert ended.returncode == 2
            assert ended.stderr.startswith(line)
            assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(number: signal.Signals) -> None:
    with hub() as service:
        service.process.send_signal(number)
        assert service.process.wait(5) == 0
