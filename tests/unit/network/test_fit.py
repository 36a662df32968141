"""The fit finds the link behind noisy timings, and every rank's link behind the pairs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import BadInput
from dovetail.network.fit import LARGE, SMALL, fit_link
from dovetail.network.measure import PARTNERS, Pair, host_links, rounds
from dovetail.network.model import Link

links = st.builds(Link, startup=st.floats(1e-6, 1e-2), bandwidth=st.floats(1e5, 1e11))


@given(link=links, sizes=st.sets(st.integers(1, 10**8), min_size=2, max_size=6))
def test_exact_timings_give_the_link_back(link: Link, sizes: set[int]) -> None:
    found, error = fit_link([(nbytes, link.time(nbytes)) for nbytes in sizes])
    for nbytes in sizes:
        assert found.time(nbytes) == pytest.approx(link.time(nbytes), rel=1e-6)
    assert error < 1e-6


def test_noise_is_averaged_and_reported() -> None:
    link, rng = Link(startup=50e-6, bandwidth=62.5e6), random.Random(1)
    samples = [(n, link.time(n) * rng.uniform(0.9, 1.1)) for n in (SMALL, LARGE) for _ in range(400)]
    found, error = fit_link(samples)
    assert found.startup == pytest.approx(link.startup, rel=0.03)
    assert found.bandwidth == pytest.approx(link.bandwidth, rel=0.03)
    # Of a uniform +-10 % the middle half lies within 5 %, on average 2.5 % away.
    assert error == pytest.approx(0.025, abs=0.005)


def test_stalls_do_not_count() -> None:
    link = Link(startup=50e-6, bandwidth=62.5e6)
    samples = [(n, link.time(n)) for n in (SMALL, LARGE) for _ in range(10)]
    found, _ = fit_link([*samples, (SMALL, 1.0), (SMALL, 2.0), (LARGE, 3.0)])
    assert found.startup == pytest.approx(link.startup)
    assert found.bandwidth == pytest.approx(link.bandwidth)


def test_startup_is_never_negative() -> None:
    found, error = fit_link([(100, 0.5), (1000, 10.0)])
    assert found.startup == 0
    assert error > 0.1


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "0 timings of 0 sizes"),
        ([(64, 1.0), (64, 2.0)], "2 timings of 1 sizes"),
        ([(64, 0.0), (128, 1.0)], "a timing is 0"),
        ([(64, float("nan")), (128, 1.0)], "not a number"),
        ([(64, 2.0), (128, 1.0)], "took no longer"),
    ],
)
def test_bad_timings_are_named(samples: list[tuple[int, float]], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        fit_link(samples)


@given(world=st.integers(2, 40))
def test_rounds_pair_everyone_with_new_partners(world: int) -> None:
    seen: set[tuple[int, int]] = set()
    for pairs in rounds(world):
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)) == world - world % 2
        assert not seen & set(pairs)
        seen |= set(pairs)
    assert len(seen) == min(PARTNERS, world - 1 + world % 2) * (world // 2)


def test_a_rank_is_as_fast_as_its_fastest_pair() -> None:
    def pair(first: int, second: int, bandwidth: float) -> Pair:
        return Pair(first=first, second=second, link=Link(startup=1e-5, bandwidth=bandwidth), error=0.0)

    pairs = (pair(0, 1, 100.0), pair(0, 2, 10.0), pair(1, 2, 10.0))
    assert [link.bandwidth for link in host_links(pairs, 3)] == [100.0, 100.0, 10.0]
