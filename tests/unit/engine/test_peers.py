"""How ranks meet in a store: who is missing, who differs, who gave up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dovetail.engine.peers import Card, Meeting, check_same, difference, digest
from dovetail.engine.rule import Hyper, Rule
from dovetail.engine.table import TensorSpec
from dovetail.errors import BadInput, Mismatch, Refused, Unreachable


class Memory:
    """A store for threads."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: Any, /) -> None:
        with self._lock:
            self._data[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key: str, /) -> bytes:
        return self._data[key]

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            value = int(self._data.get(key, b"0")) + amount
            self._data[key] = str(value).encode()
            return value

    def check(self, keys: list[str], /) -> bool:
        return all(key in self._data for key in keys)


def on_ranks(world: int, body: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def meet(store: Memory, rank: int, world: int, seconds: float = 5.0) -> Meeting:
    return Meeting(store, rank=rank, world=world, name="job", seconds=seconds)


def test_everybody_gets_all_cards_and_a_second_opening_does_not_see_the_first() -> None:
    store = Memory()
    for address in ("a", "b"):
        cards = on_ranks(3, lambda r, a=address: meet(store, r, 3).cards(Card(f"{a}{r}", "h", {})))  # type: ignore[misc]
        assert [[c.address for c in got] for got in cards] == [[f"{address}{r}" for r in range(3)]] * 3


def test_missing_ranks_are_named_in_time() -> None:
    store = Memory()
    meeting = meet(store, 1, 4, seconds=0.2)
    with pytest.raises(Unreachable, match=r"ranks 0, 2, 3 \(of 4; 1 came\)"):
        meeting.cards(Card("", "", {}))


def test_one_who_gives_up_is_heard_by_the_others_at_once() -> None:
    store = Memory()

    def body(rank: int) -> Any:
        meeting = meet(store, rank, 3, seconds=20)
        if rank == 1:
            meeting.spoil(Refused("hub 0 at x:1: wrong secret"))
            return None
        return meeting.cards(Card("", "", {}))

    begun = time.monotonic()
    results = on_ranks(3, body)
    assert time.monotonic() - begun < 5
    assert isinstance(results[0], Refused)
    assert str(results[0]) == str(results[2]) == "rank 1 could not start: hub 0 at x:1: wrong secret"


def opened(store: Memory, rank: int, tensors: list[TensorSpec], rule: str = "sgd") -> None:
    meeting = meet(store, rank, 3)
    digests = {"tensors": digest(tensors), "update rule": digest(rule)}
    check_same(meeting, meeting.cards(Card("", "", digests)), shown={"update rule": rule}, tensors=tensors)


def test_different_models_raise_the_same_line_on_every_rank() -> None:
    store = Memory()
    mine = [TensorSpec("a", 8), TensorSpec("b", 400)]
    other = [TensorSpec("a", 8), TensorSpec("b", 800)]
    results = on_ranks(3, lambda r: opened(store, r, other if r == 2 else mine))
    assert all(isinstance(e, Mismatch) for e in results)
    line = "parameter 1 is 'b' (400 bytes of f32) on rank 0 and 'b' (800 bytes of f32) on rank 2"
    assert {str(e) for e in results} == {f"{line}; every rank must train the same model"}


def test_different_settings_are_shown_in_words() -> None:
    store = Memory()
    results = on_ranks(3, lambda r: opened(store, r, [TensorSpec("a", 8)], "adam" if r == 1 else "sgd"))
    assert {str(e) for e in results} == {
        "ranks do not agree on the update rule: rank 0 has sgd, rank 1 has adam",
    }


def test_equal_ranks_pass() -> None:
    store = Memory()
    assert on_ranks(3, lambda r: opened(store, r, [TensorSpec("a", 8)])) == [None] * 3


def test_the_first_difference_is_found_in_length_type_and_group() -> None:
    a, b = TensorSpec("a", 8), TensorSpec("b", 8)
    assert difference([a], [a, b], ranks=(0, 3)) == "'b' is a parameter on rank 3 only (1 and 2 in all)"
    assert "bytes of f64" in difference([a], [TensorSpec("a", 8, "f64")], ranks=(0, 1))
    assert "group 1" in difference([a], [TensorSpec("a", 8, group=1)], ranks=(0, 1))


def test_rules_refuse_what_the_aggregator_cannot_do() -> None:
    assert (Rule().code, Rule().updates) == (0, False)
    assert Rule(kind="sgd", nesterov=True, maximize=True).flags == 3
    assert Hyper(lr=0.5, eps=1e-3).values == [0.5, 0.0, 0.0, 0.0, 0.9, 0.999, 1e-3]
    with pytest.raises(BadInput, match="amsgrad"):
        Rule(kind="adam", amsgrad=True)
    with pytest.raises(BadInput, match="'lion'"):
        Rule(kind="lion")
    with pytest.raises(BadInput, match="nesterov"):
        Rule(kind="adam", nesterov=True)
