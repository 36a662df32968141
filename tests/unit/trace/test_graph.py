"""Profiles: what is refused, and the orders they give."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.trace.graph import Op, Param, Profile

W, V = Param("w", 8), Param("v", 4)


@pytest.mark.parametrize(
    ("ops", "params", "words"),
    [
        ((Op("a", 1.0, ("b",)), Op("b", 1.0, ("a",))), (), "a cycle through 'a', 'b'"),
        ((Op("a", -1.0),), (), "'a' has the time -1.0"),
        ((Op("a", float("nan")),), (), "'a' has the time nan"),
        ((Op("a", 1.0), Op("a", 1.0)), (), "op 'a' is listed twice"),
        ((Op("a", 1.0, ("z",)),), (), "unknown input 'z'"),
        ((Op("a", 1.0, (), ("w",)),), (), "unknown parameter 'w'"),
        ((Op("a", 1.0, (), (), "w"),), (), "unknown parameter 'w'"),
        ((Op("a", 1.0, (), (), "w"), Op("b", 1.0, (), (), "w")), (W,), "both complete the gradient of 'w'"),
        ((), (W, W), "parameter 'w' is listed twice"),
        ((), (Param("w", -8),), "size -8"),
    ],
)
def test_impossible_profiles_are_named(ops: tuple[Op, ...], params: tuple[Param, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Profile(ops, params)


def test_orders_and_halves() -> None:
    ops = (
        Op("first", 1.0, (), ("w",)),
        Op("second", 1.0, ("first",), ("v", "w")),
        Op("back second", 2.0, ("second",), (), "v"),
        Op("back first", 2.0, ("back second",), (), "w"),
    )
    profile = Profile(ops, (W, V))
    assert profile.first_use == {"w": 0, "v": 1}
    assert profile.production == {"v": 0, "w": 1}
    assert profile.backward_start == 2
    assert profile.compute_time == 6.0


@given(seed=st.integers(0, 10**6), count=st.integers(1, 12))
def test_any_order_of_ops_becomes_topological_and_survives_a_file(seed: int, count: int) -> None:
    rng = random.Random(seed)
    ops = [
        Op(str(i), rng.random(), tuple(str(j) for j in rng.sample(range(i), rng.randint(0, i)))) for i in range(count)
    ]
    rng.shuffle(ops)
    profile = Profile(tuple(ops), ())
    assert all(profile.op_index[name] < i for i, op in enumerate(profile.ops) for name in op.inputs)
    assert codec.decode(Profile, codec.encode(profile)) == profile


def test_fingerprint_tells_models_apart() -> None:
    assert Profile((), (W, V)).fingerprint != Profile((), (W,)).fingerprint
    assert Profile((), (W, V)).fingerprint == Profile((Op("a", 1.0),), (W, V)).fingerprint
