"""Figures that benches draw from timelines and counters."""

from __future__ import annotations

import pytest

from dovetail.bench.cpu import idle_share, parse_cpu
from dovetail.bench.orders import Workload
from dovetail.bench.run import from_zero, overlap, paces, progress
from dovetail.bench.stage import Site
from dovetail.bench.systems import chosen, coalesced
from dovetail.bench.train import Floors, Setup
from dovetail.errors import BadInput
from dovetail.timeline import COMPUTE, SEND, Span, Timeline


def line() -> Timeline:
    spans = (
        Span(node="worker 0", lane=COMPUTE, name="c", start=10.0, end=12.0, iteration=0),
        Span(node="worker 0", lane=SEND, name="s", start=11.0, end=12.5, iteration=0),
    )
    return Timeline(source="x", policy="", spans=spans, boundaries={"worker 0": (10.0, 12.5), "worker 1": (10.5, 12.0)})


def test_progress_is_that_of_the_last_worker_and_adds_up() -> None:
    assert progress(line()) == [2.0]  # from 10.5 to 12.5
    steps = progress(
        Timeline(source="", policy="", spans=(), boundaries={"worker 0": (0, 1, 5, 6), "worker 1": (1, 3, 4, 7)})
    )
    assert steps == [2, 2, 2]


def test_the_pace_is_the_slowest_workers_in_each_iteration() -> None:
    bounds = {"worker 0": (0.0, 1.0, 5.0), "worker 1": (1.0, 3.0, 4.0)}
    steps = Timeline(source="", policy="", spans=(), boundaries=bounds)
    assert paces(steps) == [2.0, 4.0]
    assert Floors([steps]).pace == 3.0, "nothing was disturbed, so alone counts"
    slow = Timeline(source="", policy="", spans=(), boundaries={"worker 0": (0.0, 6.0, 11.0)})
    assert (Floors([steps], [slow]).floor, Floors([steps], [slow]).pace) == (2.0, 5.5)


def test_from_zero_moves_everything() -> None:
    moved = from_zero(line())
    assert moved.boundaries["worker 0"] == (0.0, 2.5)
    assert moved.spans[1].start == 1.0


def test_overlap_is_the_hidden_share() -> None:
    alone = Timeline(source="", policy="", spans=line().spans, boundaries={"worker 0": (10.0, 12.5)})
    assert overlap(alone) == pytest.approx((2.0 + 1.5 - 2.5) / 1.5)
    assert overlap(Timeline(source="", policy="", spans=alone.spans[:1], boundaries=alone.boundaries)) is None


def test_idle_cores_are_counted_once() -> None:
    before = parse_cpu("cpu  100 0 50 800 50 0 0 0 70 0\ncpu0 1 1\n")
    after = parse_cpu("cpu  150 0 50 900 100 0 0 0 99 0\ncpu0 1 1\n")
    assert idle_share(before, after) == 0.75


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"iterations": 0}, "0 iterations"),
        ({"workload": Workload(model="vgg19", scale=0.0, compute=1.0)}, "scale is 0.0"),
        ({"workload": Workload(model="vgg19", scale=1.0, compute=-1.0)}, "compute is -1.0"),
        ({"site": Site(workers=1, rate=0.0), "same_machines": True}, "2 workers or more"),
        ({"workload": Workload(model="vgg19", scale=1.0, compute=None), "predict": True}, "emulated"),
    ],
)
def test_bad_setups_are_told_in_one_line(options: dict[str, object], words: str) -> None:
    good = {
        "workload": Workload(model="vgg19", scale=1.0, compute=1.0),
        "systems": chosen(["hub"]),
        "site": Site(workers=4, rate=0.0),
    }
    with pytest.raises(BadInput, match=words):
        Setup(**{**good, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [["nccl"], ["ddp", "ddp"], []])
def test_unknown_or_doubled_systems_are_refused(names: list[str]) -> None:
    with pytest.raises(BadInput):
        chosen(names)


def test_each_of_our_systems_runs_the_given_policies_and_others_their_own() -> None:
    ddp, ring, auto = chosen(["ddp", "ring", "auto"], ["tac", "auto"])
    assert (ddp.each, ddp.variants) == (False, ("25", "5", "1"))
    assert (ring.each, ring.variants, ring.pattern) == (True, ("tac", "auto"), "ring")
    assert (auto.free, auto.variants) == (True, ("auto",))
    for policies in (["tak"], ["p3", "p3"], []):
        with pytest.raises(BadInput):
            chosen(["ring"], policies)


def test_chunks_in_a_row_become_one_span_and_others_stay() -> None:
    def chunk(start: float, name: str = "fc6", peer: str = "hub 0") -> Span:
        return Span(
            node="worker 0", lane=SEND, name=name, start=start, end=start + 0.5e-3, iteration=1, nbytes=10, peer=peer
        )

    found = coalesced([chunk(0.0), chunk(1e-3), chunk(1e-3, name="fc7"), chunk(1.2e-3, peer="hub 1"), chunk(9e-3)])
    assert [(s.name, s.peer, s.start, s.nbytes) for s in found] == [
        ("fc6", "hub 0", 0.0, 20),
        ("fc7", "hub 0", 1e-3, 10),
        ("fc6", "hub 1", 1.2e-3, 10),
        ("fc6", "hub 0", 9e-3, 10),
    ]
