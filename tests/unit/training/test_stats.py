"""The straggler and overlap report: sums of instants become the figures they should."""

from __future__ import annotations

import pytest

from dovetail.engine.usage import Usage
from dovetail.training.meter import EVERY, Meter
from dovetail.training.reporting import Reporter
from dovetail.training.stats import Stats


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Store(dict[str, bytes]):
    """As much of torch's store as the report uses."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class Rank:
    """Iterations of `work` seconds until the gradients are there, `after` until the step, and a wait between."""

    def __init__(self, rank: int = 0, world: int = 1, store: Store | None = None) -> None:
        self.clock, self.waited, self.used = Clock(), 0.0, Usage()
        self.meter = Meter(self.clock)
        self.reporter = Reporter(self.meter, job="j", policy="p3", rank=rank, world=world, store=store)
        self.reporter.follow(lambda: self.used)

    def iterate(self, times: int, *, work: float, wait: float = 0.0, busy: float = 0.0, after: float = 0.0) -> Stats:
        for _ in range(times):
            self.clock.now += work
            self.meter.ready(self.waited)
            self.clock.now += wait + after
            self.waited += wait
            self.used = Usage(busy=self.used.busy + busy, sent={0: self.used.sent.get(0, 0) + 10, 5: 90})
            self.meter.stepped(self.waited)
        return self.reporter.stats()


def test_overlap_is_the_share_of_the_shorter_that_was_hidden() -> None:
    stats = Rank().iterate(11, work=0.7, wait=0.1, busy=0.4)
    assert (stats.iterations, stats.counted) == (11, 10)
    assert stats.iteration_s == pytest.approx(0.8)
    assert stats.compute_s == pytest.approx(0.7)
    assert stats.communication_s == pytest.approx(0.4)
    assert stats.exposed_s == pytest.approx(0.1)
    assert stats.alpha == pytest.approx(0.75)
    assert stats.exposed_total_s == pytest.approx(1.1)
    assert stats.sent == {0: 110, 5: 90}


@pytest.mark.parametrize(
    ("wait", "busy", "alpha"), [(0.0, 0.4, 1.0), (0.4, 0.4, 0.0), (0.5, 0.4, 0.0), (0.0, 0.01, None)]
)
def test_the_ends_of_the_scale(wait: float, busy: float, alpha: float | None) -> None:
    assert Rank().iterate(11, work=0.7, wait=wait, busy=busy).alpha == (
        alpha if alpha is None else pytest.approx(alpha)
    )


def test_the_late_rank_is_found_although_iterations_take_all_the_same() -> None:
    store = Store()
    quick, slow = Rank(0, 2, store), Rank(1, 2, store)
    quick.iterate(10, work=0.5, wait=0.3)
    slow.iterate(10, work=0.8)
    stats = quick.reporter.stats()
    assert stats.iteration_s == pytest.approx(slow.reporter.stats().iteration_s)
    assert stats.straggler == 1
    assert stats.lateness == {0: 0.0, 1: pytest.approx(0.3)}


def test_a_rank_that_computes_after_its_gradients_is_not_late() -> None:
    store = Store()
    Rank(0, 2, store).iterate(10, work=0.5)
    assert Rank(1, 2, store).iterate(10, work=0.5, after=0.4).lateness[1] == pytest.approx(0.0)


def test_a_rank_that_was_not_heard_of_is_left_out() -> None:
    stats = Rank(0, 3, Store()).iterate(5, work=0.1)
    assert list(stats.lateness) == [0]
    assert stats.straggler is None


def test_figures_begin_anew_with_another_plan_and_sums_go_on() -> None:
    rank = Rank()
    rank.iterate(10, work=2.0, busy=0.5)
    before = rank.used
    rank.used = Usage()
    rank.reporter.follow(lambda: before)  # as an engine that goes is asked for the last time
    rank.reporter.follow(lambda: rank.used)
    rank.meter.replanned()
    stats = rank.iterate(11, work=1.0, busy=0.5)
    assert stats.replans == 1
    assert (stats.iterations, stats.counted) == (21, 10)
    assert stats.iteration_s == pytest.approx(1.0)
    assert stats.communication_total_s == pytest.approx(10.5)


def test_old_iterations_no_longer_count() -> None:
    rank = Rank()
    rank.iterate(30, work=5 * EVERY)
    assert rank.iterate(100, work=2 * EVERY).iteration_s == pytest.approx(2 * EVERY)


def test_before_the_first_iteration_there_is_nothing() -> None:
    stats = Rank().reporter.stats()
    assert stats.alpha is None
    assert "not known yet" in str(stats)


def test_prometheus_text() -> None:
    store = Store()
    Rank(1, 2, store).iterate(11, work=0.9)
    text = Rank(0, 2, store).iterate(11, work=0.75, wait=0.125, busy=0.5).prometheus()
    for line in (
        'dovetail_iterations_total{job="j",rank="0"} 11.0',
        'dovetail_sent_bytes_total{job="j",priority="5",rank="0"} 90.0',
        'dovetail_replans_total{job="j",rank="0"} 0.0',
        'dovetail_lateness_seconds{job="j",of="0",rank="0"} 0.0',
    ):
        assert line in text
    assert 'dovetail_overlap_ratio{job="j",rank="0"} 0.75' in text
    assert 'dovetail_lateness_seconds{job="j",of="1",rank="0"} 0.1' in text
    assert 'dovetail_exposed_communication_seconds_total{job="j",rank="0"} 1.375' in text
