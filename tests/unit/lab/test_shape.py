"""Shaping: the unit fits the burst, and the queue stays short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import BadInput
from dovetail.lab.shape import segment, tbf

RATES = st.floats(min_value=1e5, max_value=5e9)


@given(RATES, RATES)
def test_every_unit_fits_burst_and_queue(rate: float, slowest: float) -> None:
    unit = segment(min(rate, slowest))
    settings = dict(zip(tbf(rate, unit)[1::2], tbf(rate, unit)[2::2], strict=True))
    # tbf cuts what is above the burst into packets (slow) and drops for ever what is above the queue.
    assert int(settings["burst"]) > unit
    assert int(settings["limit"]) >= 4 * unit
    assert settings["rate"] == f"{round(rate * 8)}bit"


def test_the_queue_at_500_mbit_is_about_4_ms() -> None:
    rate = 62.5e6
    settings = dict(zip(tbf(rate, segment(rate))[1::2], tbf(rate, segment(rate))[2::2], strict=True))
    assert int(settings["limit"]) / rate <= 4.3e-3


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_what_cannot_be_shaped_is_refused(rate: float) -> None:
    with pytest.raises(BadInput, match="cannot be shaped"):
        tbf(rate, 65536)
