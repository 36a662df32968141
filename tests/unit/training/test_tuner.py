"""The tuner against a network that is a formula: it triggers, recovers, comes back, and leaves a steady one alone."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.plan.tuning import Floats, Shares, Sight, even
from dovetail.training.tuning import Decision, Tuner

NODES = 8


def traffic(shares: Shares) -> Floats:
    """Everyone sends its gradients to the masters, and the masters their results to everyone."""
    found = np.array([[shares[j] + shares[i] for j in range(NODES)] for i in range(NODES)])
    np.fill_diagonal(found, 0.0)
    return found * 1e6


class Formula:
    """Rounds of shuffle over links of these speeds; every rank hears of a round one round later."""

    def __init__(self, *, seed: int = 0, noise: float = 0.05, lost: float = 0.1) -> None:
        self.speed = np.ones(NODES)
        self.tuner = Tuner(even(NODES), groups=None, traffic=traffic)
        self.times: list[float] = []
        self.decisions: list[Decision] = []
        self._random, self._noise, self._lost = np.random.default_rng(seed), noise, lost
        self._told: Sight | None = None

    def best(self) -> float:
        """What the best shares for the present speeds take; a slow node's own gradients take longest here."""
        return min(self._seconds(shares) for shares in (even(NODES), (1 / 7,) * 7 + (0.0,)))

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            if self._told is not None and (decision := self.tuner.observe(self._told)) is not None:
                self.decisions.append(decision)
            needed = self._needed(self.tuner.shares)
            # Rounds are late by what was lost on the way, and never early; what links carried varies much less.
            late = float(self._random.exponential(self._noise)) + (self._random.random() < self._lost) * 0.5
            seconds = float(needed.max()) * (1 + late)
            self.times.append(seconds)
            # All streams of the link that everyone waits for share it all the time; those of others, hardly ever.
            used = needed * (1 + (NODES - 2) * (needed / needed.max()) ** 3)
            used = np.maximum.outer(used, used) * self._random.uniform(0.7, 1.3, (NODES, NODES))
            rates = traffic(self.tuner.shares) / used
            self._told = Sight(seconds=seconds, rates=rates, trips=np.full(NODES, 1e-3))

    def _seconds(self, shares: Shares) -> float:
        return float(self._needed(shares).max())

    def _needed(self, shares: Shares) -> Floats:
        """What each link needs for its bytes alone."""
        return np.array([(1 + share * (NODES - 2)) / speed for share, speed in zip(shares, self.speed, strict=True)])


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_link_and_its_return(seed: int) -> None:
    network = Formula(seed=seed)
    for speed in (1.0, 0.4, 1.0, 0.4, 1.0):
        network.speed[7] = speed
        network.run(25)
        network.run(15)
        assert np.median(network.times[-15:]) <= network.best() * 1.1 / 0.9
    assert network.tuner.shares == even(NODES), "balanced at the end"
    assert all(decision.reason for decision in network.decisions)


@pytest.mark.parametrize("seed", range(10))
def test_a_steady_network_is_left_alone(seed: int) -> None:
    network = Formula(seed=seed, noise=0.1, lost=0.2)
    network.run(300)
    assert all(decision.shares is None for decision in network.decisions), "late rounds move nothing"
    assert len(network.decisions) < 15


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_is_seen_a_little_slower_than_the_others_keeps_its_share(seed: int) -> None:
    """In a lab of equal links rank 0 was seen at 0.57 to 1 of the others, and some rounds wait for a lost packet."""
    tuner, random = Tuner(even(NODES), groups=None, traffic=traffic), np.random.default_rng(seed)
    for _ in range(300):
        rates = random.uniform(0.9, 1.1, (NODES, NODES))
        rates[:, 0] *= random.uniform(0.57, 1.0)
        seconds = 1.3 if random.random() < 0.15 else random.uniform(1.0, 1.05)
        decision = tuner.observe(Sight(seconds=seconds, rates=rates, trips=np.zeros(NODES)))
        assert decision is None or decision.shares is None


def test_a_trial_amid_late_rounds_is_measured_by_the_best_of_those_before() -> None:
    tuner = Tuner(even(NODES), groups=None, traffic=traffic)
    alike = np.ones((NODES, NODES))
    slow = alike.copy()
    slow[:, 0] = 0.4
    made = [
        tuner.observe(Sight(seconds=seconds, rates=rates, trips=np.zeros(NODES)))
        for seconds, rates in [(1.0, alike)] * 10 + [(1.15, slow)] * 2 + [(1.1, slow)] * 5
    ]
    tried, kept = [decision for decision in made if decision is not None]
    assert tried.shares is not None
    assert tried.shares[0] < 1 / NODES
    assert kept.shares == even(NODES), "1.1 s are less than the last rounds' 1.15, but more than 1 s"


def test_a_slow_rank_that_is_seen_a_little_better_is_not_tried_again() -> None:
    network = Formula(lost=0.0)
    network.speed[7] = 0.4
    network.run(25)
    shares, made = network.tuner.shares, len(network.decisions)
    assert shares[7] == 0.0
    for _ in range(20):  # seen at 0.2 of the others, now at 0.4, as happens; even shares would cost twice the time
        rates = traffic(shares)
        rates[7] *= 0.8  # of the half that it has to send
        rates[:, 7] *= 0.8
        assert network.tuner.observe(Sight(seconds=2.5, rates=rates, trips=np.full(NODES, 1e-3))) is None
    assert len(network.decisions) == made


def spared(*, seen: float) -> Tuner:
    """A tuner that has given rank 7 no work, and has since seen its link at this share of the fast ones'."""
    network = Formula(lost=0.0)
    network.speed[7] = 0.4
    network.run(25)
    assert network.tuner.shares[7] == 0.0
    for _ in range(8):  # what was there before the caller's own rounds, and what is still on its way
        assert network.tuner.observe(sight(2.5, seen)) is None
    return network.tuner


def sight(seconds: float, last: float) -> Sight:
    rates = np.ones((NODES, NODES))
    rates[7] = rates[:, 7] = last
    return Sight(seconds=seconds, rates=rates, trips=np.full(NODES, 1e-3))


def test_a_link_that_comes_back_is_tried_though_rounds_are_no_faster() -> None:
    tuner = spared(seen=0.2)
    made = [tuner.observe(sight(2.5, 0.8)) for _ in range(3)]
    said = [decision.reason for decision in made if decision is not None]
    assert len(said) == 1
    assert "rank 7's link" in said[0]
    assert tuner.shares == even(NODES)


def test_a_link_that_halves_is_a_change_even_at_the_same_pace() -> None:
    tuner = Tuner(even(NODES), groups=None, traffic=traffic)
    made = [tuner.observe(sight(1.0, 1.0 if number < 15 else 0.45)) for number in range(20)]
    said = [decision.reason for decision in made if decision is not None]
    assert len(said) == 1
    assert said[0].startswith("rank 7's link carried 100%")


def test_a_link_with_less_work_that_is_seen_a_little_worse_is_no_change() -> None:
    tuner = Tuner(tuple([0.75 / NODES] + [1.25 / NODES] + [1 / NODES] * 6), groups=None, traffic=traffic)
    rates = np.ones((NODES, NODES))
    worse = rates.copy()
    worse[0] = worse[:, 0] = 0.6
    for number in range(30):
        seen = Sight(seconds=1.0, rates=rates if number < 15 else worse, trips=np.zeros(NODES))
        assert tuner.observe(seen) is None


def test_slow_rounds_under_uneven_shares_do_not_hide_that_they_become_fast_again() -> None:
    tuner = spared(seen=0.2)
    for seconds in [4.0] * 4 + [2.5] * 3:
        assert tuner.observe(sight(seconds, 0.2)) is None
    made = [tuner.observe(sight(1.9, 0.2)) for _ in range(3)]
    assert any(decision is not None and "tries even shares" in decision.reason for decision in made)


def test_late_rounds_now_and_then_change_nothing() -> None:
    tuner = Tuner(even(NODES), groups=None, traffic=traffic)
    for number in range(200):
        seconds = 5.0 if number % 10 == 9 else 1.0  # an evaluation, a checkpoint
        assert tuner.observe(Sight(seconds=seconds, rates=np.ones((NODES, NODES)), trips=np.zeros(NODES))) is None


def test_a_slower_computation_is_no_reason_to_move_anything() -> None:
    tuner = Tuner(even(NODES), groups=None, traffic=traffic)
    made = [
        decision
        for number in range(60)
        if (
            decision := tuner.observe(
                Sight(seconds=1.0 if number < 20 else 2.0, rates=np.ones((NODES, NODES)), trips=np.zeros(NODES))
            )
        )
    ]
    assert [decision.shares for decision in made] == [None]
    assert "no rank's link stands out" in made[0].reason
