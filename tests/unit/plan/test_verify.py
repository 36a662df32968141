"""A plan that exists is valid: bytes, windows, edges; and checking it takes no time."""

from __future__ import annotations

import gc
import time

import pytest
from plan_cases import chain

from dovetail.errors import BadInput
from dovetail.plan.schedule import BACKWARD, FORWARD, PULL, PUSH, REDUCE, Plan, Transfer
from dovetail.plan.verify import check_edges, check_fits
from dovetail.trace.graph import Param

AB = (Param("a", 8), Param("b", 4))


def plan(*transfers: Transfer, edges: tuple[tuple[str, str], ...] = ()) -> Plan:
    return Plan(policy="test", params=AB, transfers=transfers, edges=edges)


B = Transfer(REDUCE, (("b", 0, 4),))


@pytest.mark.parametrize(
    ("transfers", "message"),
    [
        ((B,), "never moves 'a'"),
        ((B, Transfer(REDUCE, (("a", 0, 4),))), "never moves bytes 4..8 of 'a'"),
        ((B, Transfer(REDUCE, (("a", 4, 4),))), "moves bytes 0..4 of 'a' never"),
        ((B, Transfer(REDUCE, (("a", 0, 8),)), Transfer(REDUCE, (("a", 4, 4),))), "moves bytes 4..8 of 'a' twice"),
        ((B, Transfer(PUSH, (("a", 0, 8),))), r"never moves 'a' \(pull\)"),
        ((B, Transfer(REDUCE, (("a", 0, 9),))), "moves bytes 0..9 of 'a', which has 8"),
        ((B, Transfer(REDUCE, (("c", 0, 1),))), "unknown parameter 'c'"),
    ],
)
def test_every_byte_moves_once_each_way(transfers: tuple[Transfer, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        plan(*transfers)


@pytest.mark.parametrize(("push", "pull", "good"), [
    (BACKWARD, BACKWARD, True), (BACKWARD, FORWARD, True), (FORWARD, FORWARD, True), (FORWARD, BACKWARD, False),
])  # fmt: skip
def test_values_do_not_come_back_before_gradients_leave(push: str, pull: str, good: bool) -> None:
    transfers = (
        B,
        Transfer(PUSH, (("a", 0, 4),)),
        Transfer(PUSH, (("a", 4, 4),), window=push),
        Transfer(PULL, (("a", 0, 6),), window=pull),
        Transfer(PULL, (("a", 6, 2),), window=FORWARD),
    )
    if good:
        plan(*transfers)
    else:
        with pytest.raises(BadInput, match="pulls 'a' in the backward pass, but pushes it only after"):
            plan(*transfers)


def test_edges_form_no_cycle_alone_or_with_the_model() -> None:
    net = chain([(8, 1.0, 1.0), (4, 1.0, 1.0)])
    with pytest.raises(BadInput, match="cycle through 'x', 'y'"):
        check_edges([("x", "y"), ("y", "x")])
    whole = tuple(Transfer(REDUCE, ((p.name, 0, p.nbytes),)) for p in net.params)
    bad = Plan(policy="test", params=net.params, transfers=whole, edges=(("b0", "f0"),))
    with pytest.raises(BadInput, match="close a cycle with the model's ops"):
        check_fits(bad, net)
    stray = Plan(policy="test", params=net.params, transfers=whole, edges=(("b0", "nowhere"),))
    with pytest.raises(BadInput, match="unknown op 'nowhere'"):
        check_fits(stray, net)


def test_a_plan_for_another_model_is_recognised() -> None:
    made = plan(B, Transfer(REDUCE, (("a", 0, 8),)))
    with pytest.raises(BadInput, match="the plan is for another model"):
        check_fits(made, chain([(8, 1.0, 1.0)]))


def test_a_hundred_thousand_transfers_are_checked_in_linear_time() -> None:
    def seconds(count: int) -> float:
        transfers = tuple(Transfer(REDUCE, (("a", 64 * i, 64),), i) for i in range(count))
        edges = tuple((f"op {i}", f"op {i + 1}") for i in range(count))
        gc.disable()  # it looks at all that the other tests left, the more often the more is made here
        try:
            begin = time.process_time()
            Plan(policy="test", params=(Param("a", 64 * count),), transfers=transfers, edges=edges)
            return time.process_time() - begin
        finally:
            gc.enable()

    seconds(1000)
    # Ten times as many would take a hundred times as long in a quadratic time. The best of several: a busy machine
    # makes one run long, not all of them.
    assert min(seconds(100_000) for _ in range(4)) < 25 * max(min(seconds(10_000) for _ in range(4)), 0.02)
