"""Addresses as people write them, and where to listen."""

from __future__ import annotations

import socket

import pytest

from dovetail.engine.address import facing, format_address, listen, parse_address
from dovetail.errors import BadInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.5:7071", ("10.0.0.5", 7071)),
        ("hub1", ("hub1", 7070)),
        ("[::1]:9", ("::1", 9)),
        ("[fe80::1]", ("fe80::1", 7070)),
        ("fe80::1", ("fe80::1", 7070)),
        (" hub1:80 ", ("hub1", 80)),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
    assert parse_address(format_address(*expected)) == expected


@pytest.mark.parametrize("text", ["", ":7070", "hub:", "hub:0", "hub:99999", "hub:x", "a b:1", "a:b:c", "[::1]7070"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(BadInput, match="is not understood"):
        parse_address(text)


def test_loopback_faces_loopback_and_the_unknown_faces_something() -> None:
    assert facing("127.0.0.1") == "127.0.0.1"
    assert facing("localhost") in ("127.0.0.1", "::1")
    assert socket.inet_pton(socket.AF_INET, facing("no-such-host.invalid"))


def test_a_full_port_is_one_clear_line() -> None:
    with (
        listen("127.0.0.1") as first,
        pytest.raises(BadInput, match=r"cannot listen on 127\.0\.0\.1:\d+: the port is in"),
    ):
        listen("127.0.0.1", first.getsockname()[1])


def test_a_foreign_address_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match=r"cannot listen on 192\.0\.2\.77:0"):
        listen("192.0.2.77")
