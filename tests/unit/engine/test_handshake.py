"""The handshake over socket pairs: right and wrong secrets, noise, silence, replay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engine import control
from dovetail.engine.control import Create, Failed, Intro
from dovetail.engine.handshake import MAGIC, VERSION, Wire, answer, dial
from dovetail.errors import DovetailError, Refused, Unreachable


def pair() -> tuple[Wire, Wire]:
    a, b = socket.socketpair()
    return Wire(a), Wire(b)


async def both(one: Coroutine[Any, Any, Any], two: Coroutine[Any, Any, Any]) -> list[Any]:
    return list(await asyncio.gather(one, two, return_exceptions=True))


def welcome(_: bytes) -> str:
    return ""


def test_both_sides_prove_the_secret_and_the_intro_arrives() -> None:
    async def main() -> None:
        a, b = pair()
        left, right = await both(dial(a, secret="s", intro=b"hello"), answer(b, secret="s", judge=welcome))
        assert (left, right) == (None, b"hello")
        await a.write(b"first byte of data")  # nothing was read ahead
        assert b.sock.recv(100) == b"first byte of data"

    asyncio.run(main())


def test_a_wrong_secret_is_told_as_such_to_both() -> None:
    async def main() -> None:
        a, b = pair()
        left, right = await both(dial(a, secret="guess", intro=b""), answer(b, secret="s", judge=welcome))
        assert isinstance(left, Refused)
        assert isinstance(right, Refused)
        assert str(left) == str(right) == "wrong secret"

    asyncio.run(main())


def test_the_judges_reason_reaches_the_dialer() -> None:
    async def main() -> None:
        a, b = pair()
        left, _ = await both(dial(a, secret="s", intro=b"x"), answer(b, secret="s", judge=lambda i: f"no {i!r}"))
        assert str(left) == "no b'x'"

    asyncio.run(main())


def test_an_acceptor_that_does_not_know_the_secret_is_found_out() -> None:
    async def main() -> None:
        a, b = pair()

        async def impostor() -> None:
            await b.read(41)
            await b.write(MAGIC + bytes([VERSION]) + bytes(32))
            await b.read(32 + 2 + 1)
            await b.write(b"\0" + bytes(32))  # "you are welcome", unproved

        left, _ = await both(dial(a, secret="s", intro=b"x"), impostor())
        assert isinstance(left, Refused)

    asyncio.run(main())


def test_a_recorded_dialer_cannot_be_replayed() -> None:
    async def main() -> None:
        a, b = pair()
        c, d = pair()
        recorded = b""

        async def tap() -> None:  # between dialer a and acceptor d, writing down what the dialer says
            nonlocal recorded
            for count, source, sink in ((41, b, c), (41, c, b), (32 + 2 + 2, b, c), (33, c, b)):
                data = await source.read(count)
                recorded += data if source is b else b""
                await sink.write(data)

        await asyncio.gather(dial(a, secret="s", intro=b"me"), tap(), answer(d, secret="s", judge=welcome))
        e, f = pair()
        await e.write(recorded)
        with pytest.raises(Refused, match="wrong secret"):
            await answer(f, secret="s", judge=welcome)

    asyncio.run(main())


@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=60, deadline=None)
def test_noise_never_gets_in(noise: bytes) -> None:
    async def main() -> None:
        a, b = pair()
        await a.write(noise)
        a.sock.shutdown(socket.SHUT_WR)
        with pytest.raises((Refused, Unreachable)):
            await answer(b, secret="", judge=welcome)
        a.close()
        b.close()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", MAGIC, MAGIC + bytes([VERSION]) + bytes(32)])
def test_a_slow_visitor_is_let_go_in_time(said: bytes) -> None:
    async def main() -> None:
        a, b = pair()
        await a.write(said)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Unreachable, match="within"):
            await answer(b, secret="s", judge=welcome, limit=0.1)
        assert asyncio.get_running_loop().time() - begun < 1

    asyncio.run(main())


def test_another_version_is_named() -> None:
    async def main() -> None:
        a, b = pair()
        await b.write(MAGIC + bytes([VERSION + 1]) + bytes(32))
        with pytest.raises(Refused, match=f"version {VERSION + 1} and this is version {VERSION}"):
            await dial(a, secret="s", intro=b"")

    asyncio.run(main())


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_a_message_is_understood_or_refused(body: bytes) -> None:
    async def main() -> None:
        a, b = pair()
        await a.write(body)
        a.sock.shutdown(socket.SHUT_WR)
        for _ in range(20):
            try:
                message = await control.receive(b)
            except ConnectionError:  # Unreachable is one
                break
            assert isinstance(message, control.Message)
        else:
            pytest.fail("300 bytes held 20 messages")
        a.close()
        b.close()

    asyncio.run(main())


def test_messages_travel_and_oversized_ones_do_not() -> None:
    async def main() -> None:
        a, b = pair()
        await control.send(a, Create("job", 4))
        assert await control.receive(b) == Create("job", 4)
        await control.send(a, Create("x" * 2000, 4))
        with pytest.raises(Unreachable, match="at most 1000"):
            await control.receive(b, limit=1000)

    asyncio.run(main())


def test_a_failure_is_raised_as_the_class_it_names() -> None:
    assert isinstance(Failed("Refused", "no").error("hub 0"), Refused)
    assert str(Failed("Refused", "no").error("hub 0")) == "hub 0: no"
    for unknown in ("SystemExit", "annotations", "nothing"):
        assert type(Failed(unknown, "no").error("hub 0")) is DovetailError
    assert Intro("control").token == ""
