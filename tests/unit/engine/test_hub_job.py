"""One job on a hub with a made-up engine: when it starts, whom it takes, and how it fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dovetail.engine.control import Init, Intro
from dovetail.engine.handshake import Wire
from dovetail.engine.hub_job import HubJob
from dovetail.engine.rule import Rule
from dovetail.engine.table import Table, TensorSpec, build, encode
from dovetail.errors import BadInput, DovetailError, Mismatch, Refused
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.trace.graph import Param


class FakeJob:
    def __init__(self) -> None:
        self.links: list[tuple[int, int]] = []
        self.failed: tuple[int, str, int] | None = None
        self.said: list[str] = []

    def table(self, *view: Any) -> None:
        self.said.append("table")

    def rule(self, kind: int, flags: int) -> None:
        self.said.append(f"rule {kind}")

    def link(self, peer: int, lane: int, fd: int) -> None:
        self.links.append((peer, lane))
        socket.socket(fileno=fd).close()

    def start(self) -> None:
        self.said.append("start")

    def failure(self) -> tuple[int, str, int] | None:
        return self.failed

    def fail(self, peer: int, reason: str) -> None:
        self.failed = (peer, reason, 0)

    def close(self) -> None:
        self.said.append("close")


class FakeEngine:
    def __init__(self, error: Exception | None = None) -> None:
        self.jobs: list[FakeJob] = []
        self._error = error

    def job(self, *_: Any) -> Any:
        if self._error:
            raise self._error
        self.jobs.append(FakeJob())
        return self.jobs[-1]


def table() -> Table:
    plan = Plan(
        policy="test",
        params=(Param("p", 400),),
        transfers=(Transfer(REDUCE, (("p", 0, 400),)),),
        aggregation="hub",
        chunk_bytes=64,
    )
    return build(plan, [TensorSpec("p", 400)], workers=2, hubs=1, lanes=2)


def init(rank: int, rule: Rule | None = None, **more: Any) -> Init:
    made = Init(
        digest=table().digest,
        table=encode(table()) if rank == 0 else b"",
        rule=rule or Rule(),
        deterministic=False,
        timeout=1.0,
        node=2,
        labels=["rank 0", "rank 1", "hub 0"],
        hubs=[("127.0.0.1:1", "nonce")],
    )
    return msgspec.structs.replace(made, **more)


Body = Callable[[HubJob, FakeEngine], Coroutine[Any, Any, None]]


def with_job(body: Body, error: Exception | None = None) -> None:
    async def main() -> None:
        engine = FakeEngine(error)
        job = HubJob(namespace="job", workers=2, engine=engine, secret="")
        try:
            await body(job, engine)
        finally:
            await job.close()

    asyncio.run(main())


def wire() -> Wire:
    return Wire(socket.socketpair()[0])


def bring_links(job: HubJob, keys: list[tuple[int, int]]) -> None:
    for node, lane in keys:
        intro = Intro("data", job.nonce, node, lane)
        assert job.expects(intro) == ""
        job.link(intro, wire())


ALL = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("order", [ALL, ALL[::-1], [(1, 0), (0, 1), (0, 0), (1, 1)]])
@pytest.mark.parametrize("links_first", [False, True])
def test_it_starts_when_all_ranks_and_links_are_there(order: list[tuple[int, int]], links_first: bool) -> None:
    async def body(job: HubJob, engine: FakeEngine) -> None:
        job.join(0)
        job.join(1)
        if links_first:
            bring_links(job, order)
        waits = [asyncio.ensure_future(job.init(rank, init(rank))) for rank in (1, 0)]
        await asyncio.sleep(0.05)
        assert not engine.jobs or links_first
        if not links_first:
            bring_links(job, order[:3])
            await asyncio.sleep(0.01)
            assert not job.running
            bring_links(job, order[3:])
        await asyncio.wait_for(asyncio.gather(*waits), 5)
        assert engine.jobs[0].links == ALL
        assert engine.jobs[0].said == ["table", "rule 0", "start"]
        assert "linked already" in job.expects(Intro("data", job.nonce, 0, 0))

    with_job(body)


def test_unknown_links_and_ranks_are_refused() -> None:
    async def body(job: HubJob, engine: FakeEngine) -> None:
        job.join(0)
        with pytest.raises(Refused, match="joined already"):
            job.join(0)
        with pytest.raises(Refused, match="rank 2"):
            job.join(2)
        waits = asyncio.ensure_future(job.init(0, init(0)))
        await asyncio.sleep(0.05)
        assert "has no link" in job.expects(Intro("data", job.nonce, 1, 2))
        assert "unknown guest" in job.expects(Intro("data", job.guest_token, 3, 0))
        with pytest.raises(Refused, match="does not run yet"):
            job.invite()
        waits.cancel()

    with_job(body)


async def outcome(job: HubJob, *inits: Init) -> list[DovetailError]:
    for rank in range(len(inits)):
        job.join(rank)
    found = await asyncio.gather(*(job.init(r, i) for r, i in enumerate(inits)), return_exceptions=True)
    assert all(isinstance(e, DovetailError) for e in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"digest": "other"}, Mismatch, "rank 1 has another chunk table than rank 0"),
        ({"rule": Rule(kind="sgd")}, Mismatch, "rank 1 has another rule than rank 0"),
        ({"timeout": 9.0}, Mismatch, "rank 1 has another timeout than rank 0"),
    ],
)
def test_ranks_that_differ_fail_the_job_for_all(change: dict[str, Any], kind: type, text: str) -> None:
    async def body(job: HubJob, engine: FakeEngine) -> None:
        found = await outcome(job, init(0), init(1, **change))
        assert all(type(e) is kind and text in str(e) for e in found)
        assert job.over
        assert not engine.jobs

    with_job(body)


@pytest.mark.parametrize(
    "change",
    [
        {"table": b"noise"},
        {"node": 1},
        {"labels": ["one"]},
        {"hubs": []},
        {"table": encode(replace(table(), workers=1, hubs=2))},
    ],
)
def test_a_broken_table_fails_the_job_and_nothing_else(change: dict[str, Any]) -> None:
    async def body(job: HubJob, engine: FakeEngine) -> None:
        found = await outcome(job, init(0, **change), init(1))
        assert all(isinstance(e, BadInput) for e in found)
        assert not engine.jobs

    with_job(body)


def test_an_engine_that_has_no_memory_fails_the_job_and_the_hub_lives() -> None:
    async def body(job: HubJob, engine: FakeEngine) -> None:
        bring_links(job, ALL)
        found = await outcome(job, init(0), init(1))
        assert all("cannot run the job: no memory" in str(e) for e in found)

    with_job(body, MemoryError("no memory"))


def test_a_rank_that_goes_before_the_start_fails_it_and_after_the_start_too() -> None:
    async def before(job: HubJob, engine: FakeEngine) -> None:
        job.join(0)
        waiting = asyncio.ensure_future(job.init(0, init(0)))
        await asyncio.sleep(0.05)
        job.lost(1)
        with pytest.raises(Refused, match="rank 1 left the job"):
            await waiting

    async def after(job: HubJob, engine: FakeEngine) -> None:
        bring_links(job, ALL)
        await asyncio.gather(job.init(0, init(0)), job.init(1, init(1)))
        job.lost(1)
        assert engine.jobs[0].failed == (1, "its connection to the hub was lost", 0)
        await job.close()
        assert engine.jobs[0].said[-1] == "close"
        assert job.native is None

    with_job(before)
    with_job(after)


def test_guests_come_only_where_parameters_are_held() -> None:
    async def body(job: HubJob, engine: FakeEngine) -> None:
        bring_links(job, ALL)
        await asyncio.gather(*(job.init(r, init(r, rule=Rule(kind="adam"))) for r in (0, 1)))
        assert [job.invite(), job.invite()] == [3, 4]
        guest = Intro("data", job.guest_token, 4, 1)
        assert job.expects(guest) == ""
        job.link(guest, wire())
        assert engine.jobs[0].links[-1] == (4, 1)
        assert job.expects(Intro("data", job.guest_token, 5, 0)) == "an unknown guest"

    with_job(body)
