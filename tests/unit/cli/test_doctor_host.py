"""The doctor's findings about a machine, without running anything on it."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from dovetail.cli import doctor as verb
from dovetail.cli.main import run
from dovetail.doctor import host
from dovetail.doctor.check import BROKEN, GOOD, LIMITED, Check, guarded, show, usable
from dovetail.errors import Unreachable


def test_the_interface_follows_the_peer_then_the_master_then_the_hub() -> None:
    surroundings = {"MASTER_ADDR": "127.0.0.1", "DOVETAIL_HUBS": "localhost:7070,other"}
    assert "to 127.0.0.2" in host.interface("127.0.0.2", surroundings).found
    assert "(MASTER_ADDR)" in host.interface("", surroundings).found
    assert "localhost:7070 (DOVETAIL_HUBS)" in host.interface("", {"DOVETAIL_HUBS": "localhost:7070,other"}).found


def test_a_peer_that_nobody_knows_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--facing", "no.such.host.invalid"]) == 2
    assert "--facing 'no.such.host.invalid'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["MASTER_ADDR", "DOVETAIL_HUBS"])
def test_a_meeting_place_that_nobody_knows_is_named(name: str) -> None:
    found = host.interface("", {name: "no.such.host.invalid"})
    assert found.state == BROKEN
    assert found.found == f"{name}=no.such.host.invalid: no such host is known here"
    assert name in found.advice


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: over.wait(30))
    monkeypatch.setattr(host, "PATIENCE", 0.05)
    begun = time.monotonic()
    found = host.interface("", {"MASTER_ADDR": "far.away"})
    over.set()
    assert time.monotonic() - begun < 5
    assert found.state == BROKEN
    assert "nobody has told within 0.05 s" in found.found


def test_loopback_has_its_device() -> None:
    found = host.interface("", {"MASTER_ADDR": "localhost"})
    assert (found.state, found.figures["address"], found.figures["device"]) == (GOOD, "127.0.0.1", "lo")


def test_without_a_route_outward_ranks_stay_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "facing", lambda _: "127.0.0.1")
    found = host.interface("", {})
    assert found.state == LIMITED
    assert "no route leads outward" in found.advice


def test_every_own_address_is_on_a_device() -> None:
    address = host.facing("192.0.2.1")
    assert host.device_of(address) in [name for _, name in socket.if_nameindex()]


@pytest.mark.parametrize(
    ("installed", "advice"), [("", "pip install torch"), ("2.5.1+cpu", "needs torch 2.6 or newer"), ("2.13.0", "")]
)
def test_what_torch_is_good_enough(monkeypatch: pytest.MonkeyPatch, installed: str, advice: str) -> None:
    monkeypatch.setattr(host, "_version", lambda package: installed if package == "torch" else "0.1.0")
    found = host.versions()
    assert (found.state == BROKEN) == bool(advice)
    assert advice in found.advice


def test_an_error_on_the_way_is_a_finding() -> None:
    def look() -> Check:
        raise Unreachable("nobody at 127.0.0.1")

    found = guarded("priorities", look, "switch it on")
    assert (found.state, found.found, found.advice) == (BROKEN, "nobody at 127.0.0.1", "switch it on")


CHECKS = [
    Check(name="versions", state=GOOD, found="torch 2"),
    Check(name="lab", state=LIMITED, found="not allowed", advice="become root"),
    Check(name="overlap", state=BROKEN, found="none", advice="buy cores"),
]


def test_only_what_stops_training_makes_it_unusable() -> None:
    assert usable(CHECKS[:2])
    assert not usable(CHECKS)
    assert show(CHECKS).splitlines()[1:3] == ["--  lab         not allowed", "                -> become root"]


@pytest.mark.parametrize(("count", "code"), [(2, 0), (3, 1)])
def test_the_exit_code_says_whether_one_can_train(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, code: int
) -> None:
    monkeypatch.setattr(verb, "examine", lambda facing: CHECKS[:count])
    assert run(["doctor", "--json", "-"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] is (code == 0)
    assert [check["name"] for check in found["checks"]] == ["versions", "lab", "overlap"][:count]
