"""Work is spread evenly, in proportion to weights, and the same way everywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import BadInput
from dovetail.plan.partition import assign, in_turn, spread
from dovetail.plan.patterns import routes


def loads(sizes: list[int], bins: list[int], count: int) -> list[int]:
    return [sum(s for s, b in zip(sizes, bins, strict=True) if b == i) for i in range(count)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_spread_is_within_four_thirds_of_the_optimum(sizes: list[int], bins: int) -> None:
    best = min(max(loads(sizes, list(choice), bins)) for choice in itertools.product(range(bins), repeat=len(sizes)))
    assert 3 * max(loads(sizes, spread(sizes, bins=bins), bins)) <= 4 * best


def test_spread_follows_weights() -> None:
    found = loads([1] * 300, spread([1] * 300, bins=3, weights=[1, 2, 0]), 3)
    assert found == [100, 200, 0]


def test_assign_balances_routes() -> None:
    sizes = [7, 1, 4, 4, 3, 5]
    found = routes("tree", workers=4)
    assert loads(sizes, assign(sizes, found), 2) == [12, 12]
    assert assign([], found) == []


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(0, 60))
def test_turns_are_in_proportion_at_every_point(weights: list[int], count: int) -> None:
    turns = in_turn(weights, count=count)
    for i, weight in enumerate(weights):
        for upto in range(count + 1):
            assert abs(turns[:upto].count(i) - upto * weight / sum(weights)) < len(weights)
    whole = in_turn(weights, count=sum(weights))
    assert [whole.count(i) for i in range(len(weights))] == weights


@pytest.mark.parametrize("weights", [[], [0.0], [1.0, -1.0]])
def test_bad_weights(weights: list[float]) -> None:
    with pytest.raises(BadInput, match="weights"):
        in_turn(weights, count=1)
    with pytest.raises(BadInput):
        spread([1], bins=len(weights), weights=weights)
