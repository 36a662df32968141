"""The order of collectives depends on the plan alone, keeps windows and dependencies, and covers every byte once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dovetail.c10d.sequence import (
    AHEAD,
    GATHER,
    LEAST,
    MOST,
    REDUCE,
    SCATTER,
    Call,
    Seen,
    Work,
    as_made,
    sequence,
    timed,
    work_of,
)  # fmt: skip
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, Plan, Transfer
from dovetail.plan.schedule import REDUCE as REDUCED
from dovetail.trace.graph import Param

NAMES = [f"w{i}" for i in range(6)]
TYPES = dict.fromkeys(NAMES, "f32")


def plan(*transfers: Transfer, nbytes: int = 64) -> Plan:
    return Plan(policy="test", params=tuple(Param(name, nbytes) for name in NAMES), transfers=transfers)


def whole(kind: str, *names: str, priority: int = 0, window: str = BACKWARD) -> Transfer:
    return Transfer(kind, tuple((name, 0, 64) for name in names), priority, window=window)


def test_reduces_follow_production_and_wait_for_their_last_parameter() -> None:
    large = LEAST  # no two have room in one collective
    reduces = [Transfer(REDUCED, (("w0", 0, large), ("w5", 0, large)))]
    reduces += [Transfer(REDUCED, ((name, 0, large),), priority=9) for name in NAMES[1:5]]
    work = work_of(plan(*reduces, nbytes=large), TYPES)
    calls = sequence(work, as_made(NAMES[::-1]))
    assert [work.loads[c.loads[0]].params for c in calls] == [("w4",), ("w3",), ("w2",), ("w1",), ("w0", "w5")]
    assert {c.kind for c in calls} == {REDUCE}


def test_dear_scatters_as_made_and_gathers_after_backward_by_urgency() -> None:
    pushes = [whole(PUSH, n, priority=i) for i, n in enumerate(NAMES)]
    pulls = [whole(PULL, n, priority=10 + i, window=FORWARD) for i, n in enumerate(NAMES)]
    work = work_of(plan(*pushes, *pulls), TYPES)
    calls = sequence(work, as_made(NAMES[::-1]))
    assert [(c.kind, work.loads[c.loads[0]].params[0], c.late) for c in calls] == [
        *((SCATTER, name, False) for name in NAMES[::-1]),
        *((GATHER, name, True) for name in NAMES),
    ]


def test_an_early_gather_leaves_the_line_something_else_to_do_first() -> None:
    work = work_of(plan(*(whole(PUSH, n) for n in NAMES), *(whole(PULL, n) for n in NAMES)), TYPES)
    calls = sequence(work, as_made(NAMES))
    for name in NAMES[: -AHEAD - 1]:
        places = [i for i, c in enumerate(calls) if work.loads[c.loads[0]].params == (name,)]
        assert len([c for c in calls[places[0] : places[1]] if c.kind == SCATTER]) == AHEAD + 1


def test_one_pull_of_several_pushes_is_one_gather() -> None:
    work = work_of(plan(*(whole(PUSH, n) for n in NAMES), whole(PULL, *NAMES, window=FORWARD)), TYPES)
    assert [c.loads for c in work.gathers] == [tuple(range(6))]
    mixed = work_of(plan(*(whole(PUSH, n) for n in NAMES), whole(PULL, *NAMES)), {**TYPES, "w2": "f64"})
    assert [c.loads for c in mixed.gathers] == [(0, 1, 3, 4, 5), (2,)]


def test_a_push_that_two_pulls_share_is_reduced_whole() -> None:
    halves = [Transfer(PULL, (("w0", start, 32),)) for start in (0, 32)]
    work = work_of(plan(*(whole(PUSH, n) for n in NAMES), *halves, *(whole(PULL, n) for n in NAMES[1:])), TYPES)
    assert [load.split for load in work.loads] == [False, True, True, True, True, True]
    assert len(work.gathers) == 5


@pytest.mark.parametrize("seed", range(40))
def test_any_plan_moves_every_byte_once_and_gathers_after_its_scatters(seed: int) -> None:
    chance = random.Random(seed)

    def groups() -> list[list[str]]:
        left, found = chance.sample(NAMES, len(NAMES)), []
        while left:
            count = chance.randint(1, len(left))
            found.append(left[:count])
            left = left[count:]
        return found

    def draw() -> tuple[int, str]:
        return chance.randint(0, 9), chance.choice((BACKWARD, FORWARD))

    pushes = [whole(PUSH, *g, priority=p, window=w) for g in groups() for p, w in [draw()]]
    late = {name for t in pushes if t.window == FORWARD for name in t.params}
    pulls = [whole(PULL, *g, priority=p, window=FORWARD if late & {*g} else w) for g in groups() for p, w in [draw()]]
    work = work_of(plan(*pushes, *pulls), TYPES)
    made = {name: chance.random() for name in NAMES}
    for calls in (
        sequence(work, as_made(chance.sample(NAMES, len(NAMES)))),
        timed(work, Seen(made=made, over=max(made.values()), rate=chance.choice((1.0, 100.0, 1e9)))),
    ):
        check(work, calls)
    assert sorted(name for load in work.loads for name in load.params) == NAMES


def check(work: Work, calls: tuple[Call, ...]) -> None:
    started: set[int] = set()
    ended: list[int] = []
    over = False
    for call in calls:
        assert not (over and not call.late), "what belongs to the backward pass would wait for its end"
        over = over or call.late
        if call.kind == GATHER:
            assert started.issuperset(call.loads)
        else:
            assert not started & {*call.loads}
            started.update(call.loads)
        ended += call.loads if call.kind != SCATTER else ()
    assert sorted(ended) == list(range(len(work.loads)))


def test_a_line_with_a_queue_takes_the_most_urgent_of_what_is_there() -> None:
    """The last layer is made first and needed last: what is left of it gives way to layers that are made later."""
    sizes = {"w0": LEAST, "w1": LEAST, "w2": 4 * MOST}
    params = tuple(Param(name, nbytes) for name, nbytes in sizes.items())
    reduces = [Transfer(REDUCED, ((name, 0, nbytes),), i) for i, (name, nbytes) in enumerate(sizes.items())]
    work = work_of(Plan(policy="test", params=params, transfers=tuple(reduces)), dict.fromkeys(sizes, "f32"))
    seen = Seen(made={"w2": 0.0, "w1": 1.5, "w0": 2.2}, over=2.2, rate=2 * MOST)  # a piece of w2 a second
    order = [work.loads[call.loads[0]].params[0] for call in timed(work, seen)]
    assert order == ["w2", "w2", "w1", "w0", "w2", "w2"]
    fast = replace(seen, rate=1e12)
    assert [work.loads[c.loads[0]].params[0] for c in timed(work, fast)] == ["w2"] * 4 + ["w1", "w0"]


def test_small_slices_are_put_together_and_large_transfers_cut() -> None:
    size = 5 * MOST
    slices = [Transfer(REDUCED, (("w0", start, 1 << 16),), 0) for start in range(0, size, 1 << 16)]
    rest = [Transfer(REDUCED, ((name, 0, 64),), 1 + i) for i, name in enumerate(NAMES[1:])]
    params = (Param("w0", size), *(Param(name, 64) for name in NAMES[1:]))
    work = work_of(Plan(policy="test", params=params, transfers=(*slices, *rest)), TYPES)
    assert [load.nbytes for load in work.loads] == [LEAST] * (size // LEAST) + [5 * 64]
    work = work_of(
        Plan(policy="test", params=params, transfers=(Transfer(REDUCED, (("w0", 0, size),), 0), *rest)), TYPES
    )
    assert [load.nbytes for load in work.loads] == [MOST] * 5 + [5 * 64]
