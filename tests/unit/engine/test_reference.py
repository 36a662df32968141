"""The interpreter gives every worker the mean, whatever the pattern, the size and the order of arrival."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.reference import run
from dovetail.errors import BadInput, Misuse
from dovetail.plan.partition import assign
from dovetail.plan.patterns import PATTERNS, routes
from dovetail.plan.steps import ADD, COPY, DELIVER, FETCH, FINISH, SEND, Step


@given(
    pattern=st.sampled_from(PATTERNS),
    workers=st.integers(1, 13),
    size=st.integers(0, 40),
    split=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_everyone_gets_the_sum_in_any_order_of_arrival(
    pattern: str, workers: int, size: int, split: bool, seed: int
) -> None:
    hubs = {"hub": 2, "rack-hubs": min(3, workers)}.get(pattern, 0)
    found = routes(pattern, workers=workers, hubs=hubs, split=split)
    arrays = [np.arange(size) * 7 + w * w for w in range(workers)]  # integers: sums are exact in any order
    outcome = run(found, arrays, finish=lambda total, count: total, order=random.Random(seed))
    assert sorted(outcome.results) == list(range(workers))
    for result in outcome.results.values():
        assert np.array_equal(result, np.sum(arrays, axis=0))


@given(pattern=st.sampled_from(["hub", "shuffle"]), workers=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_pulls_on_request(pattern: str, workers: int, seed: int) -> None:
    found = routes(pattern, workers=workers, hubs=2 * (pattern == "hub"), on_request=True)
    arrays = [np.full(8, float(w)) for w in range(workers)]
    outcome = run(found, arrays, order=random.Random(seed))
    for result in outcome.results.values():
        assert np.array_equal(result, np.full(8, (workers - 1) / 2))


def test_chunks_follow_their_routes_and_are_counted() -> None:
    found = routes("shuffle", workers=2)
    arrays = [np.zeros(8, dtype=np.float32), np.ones(8, dtype=np.float32)]
    chunks = assign([8, 8, 8, 8], found)
    outcome = run(found, arrays, chunks=chunks)
    assert outcome.sent == {(0, 1): 32, (1, 0): 32}
    assert np.array_equal(outcome.results[1], np.full(8, 0.5))
    only_first = run(found, arrays, chunks=[0, 0])
    assert only_first.sent == {(0, 1): 32, (1, 0): 32}
    assert np.array_equal(only_first.results[0], np.full(8, 0.5))


def test_the_same_bits_in_any_order_of_arrival() -> None:
    found = routes("shuffle", workers=5)
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=50).astype(np.float32) * 10.0**w for w in range(5)]
    first = run(found, arrays).results[0]
    for seed in range(10):
        assert run(found, arrays, order=random.Random(seed)).results[3].tobytes() == first.tobytes()


def test_a_route_that_waits_forever_is_an_error() -> None:
    broken = {
        0: (Step(FETCH), Step(COPY, (1,)), Step(SEND, (1,)), Step(DELIVER)),
        1: (Step(FETCH), Step(ADD, (0,)), Step(FINISH), Step(SEND, (0,)), Step(DELIVER)),
    }
    with pytest.raises(Misuse, match="node 0 waits forever"):
        run([broken], [np.zeros(2)] * 2)


def test_unequal_arrays_are_refused() -> None:
    with pytest.raises(BadInput, match="cannot be summed"):
        run(routes("ring", workers=2), [np.zeros(2), np.zeros(3)])
