"""Shares by bandwidth, and the blame that moves them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan.tuning import Sight, blames, even, fill, finetune, quicktune, relative, speeds


def cost(weights: tuple[float, ...], speed: list[float], extra: float) -> float:
    return max((1 + w * extra) / s for w, s in zip(weights, speed, strict=True))


def rates(speed: list[float]) -> np.ndarray:
    return np.minimum.outer(np.array(speed), np.array(speed)) * 1e6


@given(st.lists(st.floats(0.1, 1.0), min_size=3, max_size=3))
def test_no_other_shares_are_faster(speed: list[float]) -> None:
    found = fill(speed, extra=1.0)
    assert found.sum() == pytest.approx(1.0)
    steps = [i / 20 for i in range(21)]
    brute = min(cost((a, b, 1 - a - b), speed, 1.0) for a, b in itertools.product(steps, steps) if a + b <= 1)
    assert cost(tuple(found), speed, 1.0) <= brute + 1e-9


def test_equal_links_have_equal_shares() -> None:
    noisy = rates([1.0] * 8) * np.random.default_rng(0).uniform(0.85, 1.15, (8, 8))
    assert quicktune(noisy) == pytest.approx(even(8))


def test_a_link_at_40_percent_masters_nothing() -> None:
    assert quicktune(rates([1.0] * 7 + [0.4])) == pytest.approx((1 / 7,) * 7 + (0.0,))


def test_speeds_tell_the_slow_node_from_those_that_send_to_it() -> None:
    assert speeds(rates([1.0, 1.0, 0.3, 1.0, 1.0])).tolist() == pytest.approx([1, 1, 0.3, 1, 1])
    one_way = rates([1.0] * 5)
    one_way[:, 3] *= 0.3  # only what comes in is slow
    assert speeds(one_way).tolist() == pytest.approx([1, 1, 1, 0.3, 1])
    assert speeds(np.zeros((3, 3))).tolist() == [1, 1, 1], "nothing is known: all the same"


def test_groups_share_by_their_way_out_and_members_by_their_own() -> None:
    shares = quicktune(rates([1.0, 1.0, 0.4, 1.0, 1.0, 1.0]), groups=[[0, 1, 2], [3, 4, 5]])
    assert sum(shares) == pytest.approx(1.0)
    assert shares[2] < 0.3 * shares[0]
    assert sum(shares[:3]) < sum(shares[3:])


def sight(rate: np.ndarray, trips: float = 1e-3) -> Sight:
    return Sight(seconds=1.0, rates=rate, trips=np.full(len(rate), trips))


def test_the_slow_one_is_blamed_and_loses_more_each_time() -> None:
    speed = [1.0, 1.0, 1.0, 0.3]
    traffic = np.full((4, 4), 1e6) - 1e6 * np.eye(4)
    blame = blames(sight(rates(speed)), traffic)
    assert blame.argmax() == 3
    first = finetune(even(4), blame, 0)
    second = finetune(even(4), blame, 1)
    assert first is not None
    assert second is not None
    assert first[1] == second[1] == 3
    assert 0.25 - second[0][3] == pytest.approx(2 * (0.25 - first[0][3]))
    assert sum(first[0]) == pytest.approx(1.0)


def test_balanced_blame_moves_nothing() -> None:
    traffic = np.full((4, 4), 1e6) - 1e6 * np.eye(4)
    assert finetune(even(4), blames(sight(rates([1.0] * 4)), traffic), 0) is None


def test_pairs_that_never_talk_say_nothing_about_a_link() -> None:
    """In two levels most pairs exchange nothing: here groups of 12 and 4, with four pairs between them."""
    group = np.array([0] * 12 + [1] * 4)
    rates = np.where(group[:, None] == group[None], 1.0, 0.0)
    for member in range(4):
        rates[member, 12 + member] = rates[12 + member, member] = 0.9
    assert relative(rates).min() > 0.8
    shares = quicktune(rates, (tuple(range(12)), tuple(range(12, 16))))
    assert shares == pytest.approx([1 / 16] * 16)
    rates[15] *= 0.2
    assert relative(rates)[15] < 0.3
    assert relative(rates)[:15].min() > 0.8


def test_without_any_traffic_all_are_alike() -> None:
    assert relative(np.zeros((4, 4))).tolist() == [1.0] * 4
