"""Sizes, rates and times as people write them, and back: `500mbit`, `25MiB`, `1.2 ms`."""

from __future__ import annotations

import math
import re

from dovetail.errors import BadInput

_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES[_letter + "b"] = 1000**_power
    _BYTES[_letter] = _BYTES[_letter + "ib"] = 1024**_power

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-zµ/]*)\s*", re.IGNORECASE)


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise BadInput(f"{what} {text!r} is not understood; write it like {example}")
    return float(match.group(1)), match.group(2).lower()


def parse_bytes(text: str) -> int:
    """Bytes from `4096`, `4KiB`, `25MiB`, `1.5GB`; a bare `k`, `m`, `g` counts in 1024s."""
    number, unit = _split(text, "size", "4KiB, 25MiB or 100000")
    if unit not in _BYTES:
        raise BadInput(f"size {text!r} has the unknown unit {unit!r}; write it like 4KiB, 25MiB or 100000")
    return round(number * _BYTES[unit])


def parse_rate(text: str) -> float:
    """Bytes per second from `500mbit`, `2gbit`, `125MB/s`; `0` means unshaped."""
    number, unit = _split(text, "rate", "500mbit, 2gbit or 125MB/s")
    unit = unit.removesuffix("/s").removesuffix("ps")
    if unit == "" and number == 0:
        return 0.0
    if unit in _BITS:
        return number * _BITS[unit] / 8
    if unit and unit in _BYTES:
        return number * _BYTES[unit]
    raise BadInput(f"rate {text!r} has no known unit; write it like 500mbit, 2gbit or 125MB/s")


def parse_seconds(text: str) -> float:
    """Seconds from `1.5`, `20ms`, `50us`, `2min`."""
    number, unit = _split(text, "time", "1.5s, 20ms or 50us")
    if unit not in _SECONDS:
        raise BadInput(f"time {text!r} has the unknown unit {unit!r}; write it like 1.5s, 20ms or 50us")
    return number * _SECONDS[unit]


def format_bytes(nbytes: float) -> str:
    """`4.0 KiB`, `25.0 MiB`; plain bytes below 1024."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_rate(bandwidth: float) -> str:
    """`500 Mbit/s`; `unshaped` for 0 and infinity."""
    if bandwidth == 0 or math.isinf(bandwidth):
        return "unshaped"
    bits = bandwidth * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits < 999.5:
            return f"{bits:.3g} {unit}"
        bits /= 1000
    return f"{bits:.3g} Tbit/s"


def format_seconds(seconds: float) -> str:
    """`12 us`, `1.2 ms`, `3.45 s`."""
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 0.9995e-3:  # what rounds to 1000 of a unit is 1 of the next
        return f"{seconds * 1e6:.3g} us"
    if abs(seconds) < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def format_count(number: int, thing: str) -> str:
    """`1 hub`, `4 hubs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
