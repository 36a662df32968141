"""Sizes, rates and times survive being written and read, and nonsense is refused in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import BadInput
from dovetail.units import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("4KiB", 4096), ("4k", 4096), ("1MB", 10**6), ("25MiB", 25 * 2**20), ("1.5 GB", 1_500_000_000)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [("500mbit", 62.5e6), ("2Gbit/s", 250e6), ("125MB/s", 125e6), ("1 MiB/s", 2**20), ("0", 0.0), ("10gbitps", 1.25e9)],
)
def test_rates(text: str, bandwidth: float) -> None:
    assert parse_rate(text) == pytest.approx(bandwidth)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1.5", 1.5), ("20ms", 0.02), ("50us", 50e-6), ("50 µs", 50e-6), ("2min", 120.0), ("1e-3 s", 1e-3)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, "many"), (parse_bytes, "4 parsecs"), (parse_bytes, "-1"), (parse_bytes, ""),
        (parse_rate, "500"), (parse_rate, "fast"), (parse_rate, "5mbyte"),
        (parse_seconds, "soon"), (parse_seconds, "3 moons"),
    ],
)  # fmt: skip
def test_nonsense_is_named_and_an_example_given(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(BadInput, match="write it like") as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_bytes(512), "512 B"),
        (format_bytes(4096), "4.0 KiB"),
        (format_bytes(3 * 2**40), "3.0 TiB"),
        (format_rate(62.5e6), "500 Mbit/s"),
        (format_rate(0), "unshaped"),
        (format_rate(float("inf")), "unshaped"),
        (format_seconds(0), "0 s"),
        (format_seconds(12e-6), "12 us"),
        (format_seconds(1.2e-3), "1.2 ms"),
        (format_seconds(3.45), "3.45 s"),
        (format_seconds(0.99996), "1 s"),
        (format_seconds(0.99996e-3), "1 ms"),
        (format_seconds(0.9994), "999 ms"),
        (format_rate(0.99996 * 125e6), "1 Gbit/s"),
        (format_count(1, "hub"), "1 hub"),
        (format_count(0, "hub"), "0 hubs"),
    ],
)
def test_shown(shown: str, expected: str) -> None:
    assert shown == expected


@given(st.integers(0, 2**50))
def test_shown_sizes_read_back_within_rounding(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.051)


@given(st.floats(1e-6, 100))
def test_shown_times_read_back_within_rounding(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=0.006)


@given(st.floats(1, 1e11))
def test_shown_rates_read_back_within_rounding(bandwidth: float) -> None:
    assert parse_rate(format_rate(bandwidth)) == pytest.approx(bandwidth, rel=0.006)
