"""The hub service: one listener, many jobs; it outlives every client and whatever comes to its port."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.engine import control
from dovetail.engine.binding import NativeEngine
from dovetail.engine.control import Attach, Attached, Connect, Create, Created, Failed, Init, Intro, Leave, Ready
from dovetail.engine.handshake import Wire, answer
from dovetail.engine.hub_job import HubJob
from dovetail.engine.links import serve
from dovetail.errors import DovetailError, Refused

log = logging.getLogger("dovetail.hub")
WATCH = 0.2  # seconds between looks at the jobs
LAST_WORDS = 1.0  # seconds in which the news of a failure reaches the other clients
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Status:
    """What the hub does now and has done, for metrics."""

    jobs: int
    clients: int
    totals: dict[str, int]


class Hub:
    """Serves jobs on a listening socket with an engine; `run` ends when it is cancelled. Event loop only."""

    def __init__(self, listener: socket.socket, engine: NativeEngine, *, secret: str = "") -> None:
        self._listener, self._engine, self._secret = listener, engine, secret
        self._jobs: dict[str, HubJob] = {}  # by namespace
        self._clients: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._past: Counter[str] = Counter()  # totals of jobs that are over

    async def run(self) -> None:
        """Serve until cancelled, then end every job cleanly."""
        watcher = asyncio.create_task(self._watch())
        try:
            await serve(self._listener, self._welcome)
        finally:
            watcher.cancel()
            for task in (*self._clients, *self._ending):
                task.cancel()
            await asyncio.gather(watcher, *self._clients, *self._ending, return_exceptions=True)
            await asyncio.gather(*(job.close() for job in self._jobs.values()), return_exceptions=True)
            self._jobs.clear()

    def status(self) -> Status:
        """A snapshot; safe from any thread."""
        totals = Counter(self._past)
        jobs = list(self._jobs.values())
        for job in jobs:
            totals.update(_counters(job))
        return Status(jobs=len(jobs), clients=len(self._clients), totals=dict(totals))

    # --- visitors ---

    async def _welcome(self, wire: Wire) -> None:
        try:
            raw = await answer(wire, secret=self._secret, judge=self._judge)
        except OSError as error:
            self._past["refused"] += 1
            log.info("a visitor was turned away: %s", error)
            raise
        intro = msgspec.msgpack.decode(raw, type=Intro)
        if intro.role == "control":
            _keep_alive(wire.sock)
            task = asyncio.create_task(self._attend(wire))
            self._clients.add(task)
            task.add_done_callback(self._clients.discard)
            return
        job = self._job_of(intro.token)
        reason = "the job is over" if job is None else job.expects(intro)  # the same link may have come twice at once
        if job is None or reason:
            raise Refused(reason)
        job.link(intro, wire)

    def _judge(self, raw: bytes) -> str:
        try:
            intro = msgspec.msgpack.decode(raw, type=Intro)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return "an introduction that is not understood"
        if intro.role == "control":
            return ""
        job = self._job_of(intro.token)
        return "no such job at this hub" if job is None else job.expects(intro)

    def _job_of(self, token: str) -> HubJob | None:
        """By nonce or guest token; compared in constant time, as knowing it is the right to join."""
        for job in self._jobs.values():
            for known in (job.nonce, job.guest_token):
                if hmac.compare_digest(known.encode(), token.encode()):
                    return job
        return None

    async def _attend(self, wire: Wire) -> None:
        """One control connection, from its first message to its end."""
        client = _Client()
        try:
            while True:
                message = await control.receive(wire, limit=control.LARGE if client.job else control.SMALL)
                if isinstance(message, Leave):
                    client.left = True
                    return
                try:
                    reply = await self._reply_or_gone(wire, client, message)
                except DovetailError as error:
                    reply = Failed(type(error).__name__, str(error))
                await control.send(wire, reply)
        except OSError as error:
            log.info("a client is gone: %s", error)
        finally:
            wire.close()
            self._part(client)

    async def _reply_or_gone(self, wire: Wire, client: _Client, message: Any) -> Any:
        """The reply, unless the client leaves while we prepare it: an Init waits for the other ranks."""
        if not isinstance(message, Init):
            return self._reply(client, message)
        if client.job is None:
            raise Refused("an Init before a Connect")
        ready = asyncio.ensure_future(client.job.init(client.rank, message))
        gone = asyncio.ensure_future(control.receive(wire))
        try:
            await asyncio.wait({ready, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                gone.result()
                raise ConnectionError("it spoke out of turn")
            ready.result()
            return Ready()
        finally:
            for task in (ready, gone):
                task.cancel()
            await asyncio.gather(ready, gone, return_exceptions=True)

    def _reply(self, client: _Client, message: Any) -> Any:
        if isinstance(message, Create):
            client.made = self._create(message)
            return Created(client.made.nonce)
        if isinstance(message, Connect):
            job = self._job_of(message.nonce)
            if job is None or job.nonce != message.nonce:
                raise Refused("no such job at this hub; has it failed?")
            job.join(message.rank)
            client.job, client.rank = job, message.rank
            return Ready()
        if isinstance(message, Attach):
            job = self._jobs.get(message.namespace)
            if job is None:
                raise Refused(f"no job is called {message.namespace!r} here")
            guest = job.invite()
            return Attached(table=job.packed, node=job.node, guest=guest, token=job.guest_token)
        raise Refused(f"a {type(message).__name__} is not for a hub")

    def _create(self, message: Create) -> HubJob:
        name = message.namespace
        if not 0 < len(name) <= MAX_NAME or message.workers < 1:
            raise Refused(f"a job of {message.workers} ranks with a name of {len(name)} characters")
        taken = self._jobs.get(name)
        if taken is not None and taken.over:
            self._end(taken)
        elif taken is not None:
            raise Refused(
                f"the name {name!r} is taken by a job of {taken.workers} ranks; give your job another (namespace=...)"
            )
        self._jobs[name] = HubJob(namespace=name, workers=message.workers, engine=self._engine, secret=self._secret)
        self._past["jobs"] += 1
        log.info("job %r of %d ranks is registered", name, message.workers)
        return self._jobs[name]

    # --- the end of jobs ---

    def _part(self, client: _Client) -> None:
        """A client is gone: its job goes on without it only if it said so."""
        job = client.job
        if job is None:
            if client.made is not None and not client.made.ranks:
                self._end(client.made)  # registered, and abandoned before anybody joined
            return
        job.ranks.discard(client.rank)
        if not client.left and self._jobs.get(job.namespace) is job:
            job.lost(client.rank)
        if not job.ranks or job.over:
            self._end(job)

    def _end(self, job: HubJob, *, after: float = 0.0) -> None:
        """Take it off the list at once, so that its name is free, and free its memory."""
        if self._jobs.get(job.namespace) is not job:
            return
        del self._jobs[job.namespace]
        self._past.update(_counters(job))
        log.info("job %r is over", job.namespace)
        task = asyncio.create_task(self._bury(job, after))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _bury(self, job: HubJob, after: float) -> None:
        try:
            await asyncio.sleep(after)
        finally:
            await job.close()

    async def _watch(self) -> None:
        """Find jobs that the native engine gave up."""
        while True:
            await asyncio.sleep(WATCH)
            for job in list(self._jobs.values()):
                failure = job.native.failure() if job.native is not None else None
                if failure is not None:
                    log.warning("job %r failed: node %d: %s (step %d)", job.namespace, *failure)
                    self._past["failed"] += 1
                    self._end(job, after=LAST_WORDS)


class _Client:
    """What one control connection stands for."""

    def __init__(self) -> None:
        self.made: HubJob | None = None
        self.job: HubJob | None = None
        self.rank = -1
        self.left = False


def _counters(job: HubJob) -> dict[str, int]:
    native = job.native  # read once: metrics come from another thread
    return native.counters() if native is not None else {}


def _keep_alive(sock: socket.socket) -> None:
    """A client whose machine is gone without a word is noticed in half a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
