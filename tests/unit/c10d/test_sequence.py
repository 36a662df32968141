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
    MOST_PIECES,
    PIECES,
    REDUCE,
    SCATTER,
    Call,
    Seen,
    Work,
    as_made,
    piece_bytes,
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
    half, whole = LEAST // 2, LEAST  # one collective has room for one or the other
    reduces = [Transfer(REDUCED, (("w0", 0, half), ("w5", 0, half)))]
    reduces += [Transfer(REDUCED, ((name, 0, whole),), priority=9) for name in NAMES[1:5]]
    params = tuple(Param(name, half if name in ("w0", "w5") else whole) for name in NAMES)
    work = work_of(Plan(policy="test", params=params, transfers=tuple(reduces)), TYPES)
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
    sizes = {"w0": LEAST, "w1": LEAST, "w2": 4 * LEAST}
    params = tuple(Param(name, nbytes) for name, nbytes in sizes.items())
    reduces = [Transfer(REDUCED, ((name, 0, nbytes),), i) for i, (name, nbytes) in enumerate(sizes.items())]
    work = work_of(Plan(policy="test", params=params, transfers=tuple(reduces)), dict.fromkeys(sizes, "f32"))
    seen = Seen(made={"w2": 0.0, "w1": 1.5, "w0": 2.2}, over=2.2, rate=2 * LEAST)  # a piece of w2 a second
    order = [work.loads[call.loads[0]].params[0] for call in timed(work, seen)]
    assert order == ["w2", "w2", "w1", "w0", "w2", "w2"]
    fast = replace(seen, rate=1e12)
    assert [work.loads[c.loads[0]].params[0] for c in timed(work, fast)] == ["w2"] * 4 + ["w1", "w0"]


def test_halves_that_both_follow_the_backward_pass_are_one() -> None:
    """The scatter of w1 runs under the backward pass; w0 ends that, and nothing is left to hide under."""
    sizes = {"w0": LEAST, "w1": LEAST}
    params = tuple(Param(name, nbytes) for name, nbytes in sizes.items())
    pushes = [Transfer(PUSH, ((name, 0, LEAST),), 1 - i) for i, name in enumerate(sizes)]
    pulls = [Transfer(PULL, ((name, 0, LEAST),), 2 + i) for i, name in enumerate(sizes)]
    work = work_of(Plan(policy="test", params=params, transfers=(*pushes, *pulls)), dict.fromkeys(sizes, "f32"))
    seen = Seen(made={"w1": 0.0, "w0": 0.5}, over=0.5, rate=2 * LEAST)  # each half takes half a second
    found = [(call.kind, work.loads[call.loads[0]].params[0]) for call in timed(work, seen)]
    assert found == [(SCATTER, "w1"), (REDUCE, "w0"), (GATHER, "w1")]
    early = [(call.kind, work.loads[call.loads[0]].params[0]) for call in timed(work, replace(seen, over=9.0))]
    assert early == [(SCATTER, "w1"), (SCATTER, "w0"), (GATHER, "w0"), (GATHER, "w1")]


def test_small_slices_are_put_together_and_large_transfers_cut() -> None:
    size = 16 * LEAST
    slices = [Transfer(REDUCED, (("w0", start, 1 << 16),), 0) for start in range(0, size, 1 << 16)]
    rest = [Transfer(REDUCED, ((name, 0, 64),), 1 + i) for i, name in enumerate(NAMES[1:])]
    params = (Param("w0", size), *(Param(name, 64) for name in NAMES[1:]))
    for transfers in (slices, [Transfer(REDUCED, (("w0", 0, size),), 0)]):
        work = work_of(Plan(policy="test", params=params, transfers=(*transfers, *rest)), TYPES)
        assert [load.nbytes for load in work.loads] == [LEAST] * 16 + [5 * 64]


def test_a_piece_is_a_share_of_the_model_within_bounds() -> None:
    assert piece_bytes(1000) == piece_bytes(PIECES * LEAST) == LEAST
    assert piece_bytes(PIECES * 2 * LEAST) == 2 * LEAST
    assert piece_bytes(PIECES * MOST) == piece_bytes(MOST_PIECES * MOST) == MOST
    assert piece_bytes(MOST_PIECES * 2 * MOST) == 2 * MOST
