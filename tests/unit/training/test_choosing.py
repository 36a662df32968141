"""`auto` keeps what measures best, prefers its prediction among equals, and says why."""

from __future__ import annotations

import pytest

from dovetail.bench.models import profile_of
from dovetail.network.model import Cluster, Link
from dovetail.plan.policies import make_plan
from dovetail.simulate.run import simulate
from dovetail.training.choosing import MOST, ROUNDS, Candidate, Trials, shortlist, verdict

PROFILE = profile_of("vgg19", compute=1.0, scale=1 / 16)
CLUSTER = Cluster.uniform(workers=4, link=Link(startup=50e-6, bandwidth=62.5e6))


@pytest.fixture(scope="module")
def short() -> list[Candidate]:
    return shortlist(PROFILE, CLUSTER, aggregation=None, place="worker")


def test_ddp_is_always_tried_and_the_best_prediction_comes_first(short: list[Candidate]) -> None:
    assert sum(c.plan.policy == "ddp" for c in short) == 1
    assert len(short) == MOST
    of_rings = [c.predicted for c in short if c.plan.aggregation == "ring"]
    assert of_rings == sorted(of_rings)
    assert short[0].plan.policy != "ddp", "on a slow network something must beat DDP's schedule"


def test_ddp_is_tried_in_the_buckets_that_suit_it_best() -> None:
    profile = profile_of("resnet50", compute=0.3, scale=1 / 16)
    (usual,) = (c for c in shortlist(profile, CLUSTER, aggregation=None, place="worker") if c.plan.policy == "ddp")
    default = make_plan(profile, CLUSTER, "ddp")
    assert len(usual.plan.transfers) > len(default.transfers)
    assert usual.predicted < simulate(profile, default, CLUSTER, quick=True).iteration_time


def test_a_ring_and_the_best_of_another_pattern_are_tried(short: list[Candidate]) -> None:
    patterns = [c.plan.aggregation for c in short if c.plan.policy != "ddp"]
    assert patterns[0] == "ring", "senders of a shuffle take turns, so an equal prediction is no tie"
    assert patterns[1] != "ring"


@pytest.mark.parametrize(("aggregation", "place"), [("ring", "worker"), ("shuffle", "hub"), ("tree", "worker")])
def test_what_the_user_fixed_stays_fixed(aggregation: str, place: str) -> None:
    found = shortlist(PROFILE, CLUSTER, aggregation=aggregation, place=place)
    assert {c.plan.aggregation for c in found} == {aggregation}
    assert {c.plan.update for c in found} == {place}


def test_each_candidate_gets_its_rounds_and_the_first_is_not_counted(short: list[Candidate]) -> None:
    trials = Trials(short)
    clock, ends = 0.0, []
    for number in range(1, 2 * (ROUNDS + 1) + 1):
        over = trials.round_begins(clock)
        if over:
            ends.append(number)
            trials.advance()
        clock += 9.0 if number % (ROUNDS + 1) == 1 else 1.0 + trials.at
    assert ends == [ROUNDS + 1, 2 * (ROUNDS + 1)]
    assert trials.measured == [1.0, 2.0]


def test_the_slowest_rank_decides(short: list[Candidate]) -> None:
    kept, _ = verdict(short, [[1.0, 0.9, 2.0], [1.0, 1.5, 2.0]])
    assert kept == 0


def test_reality_wins_over_prediction_and_the_line_says_so(short: list[Candidate]) -> None:
    kept, line = verdict(short, [[1.0, 0.8, 2.0], [1.0, 0.85, 2.0]])
    assert kept == 1
    assert short[1].plan.policy in line
    assert "was predicted best but took 1 s" in line


def test_a_hair_faster_is_not_clearly_faster(short: list[Candidate]) -> None:
    assert verdict(short, [[1.0, 0.995, 2.0]])[0] == 0
