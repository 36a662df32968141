"""The order of collectives depends on the plan alone, keeps windows and dependencies, and covers every byte once."""

from __future__ import annotations

import random

import pytest

from dovetail.c10d.sequence import AHEAD, GATHER, REDUCE, SCATTER, as_made, sequence, work_of
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
    work = work_of(plan(whole(REDUCED, "w0", "w5"), *(whole(REDUCED, n, priority=9) for n in NAMES[1:5])), TYPES)
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
    calls = sequence(work, as_made(chance.sample(NAMES, len(NAMES))))
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
    assert sorted(name for load in work.loads for name in load.params) == NAMES
