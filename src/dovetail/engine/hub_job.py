"""One job on a hub, from its registration to its end; what it holds is freed with it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

from dovetail.engine.address import parse_address
from dovetail.engine.binding import NativeEngine, NativeJob, give
from dovetail.engine.control import Init, Intro
from dovetail.engine.handshake import Wire
from dovetail.engine.links import Key, Target, connect
from dovetail.engine.table import Table, decode
from dovetail.errors import BadInput, DovetailError, Mismatch, Refused

HUB_LINKS = 10.0  # seconds for hubs to reach each other


class HubJob:
    """Ranks join, links arrive in any order, and when the last of both is there it runs; event loop only."""

    def __init__(self, *, namespace: str, workers: int, engine: NativeEngine, secret: str) -> None:
        self.namespace, self.workers = namespace, workers
        self.nonce = secrets.token_hex(16)
        self.guest_token = secrets.token_hex(16)
        self.ranks: set[int] = set()  # who has a control connection
        self.native: NativeJob | None = None
        self.packed = b""
        self.table: Table | None = None
        self.node = -1
        self.updates = False
        self._engine, self._secret = engine, secret
        self._first: Init | None = None
        self._digests: dict[int, Init] = {}
        self._links: dict[Key, Wire] = {}
        self._guests = 0
        self._running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> bool:
        return self.native is not None

    @property
    def over(self) -> bool:
        """It has failed; nobody can join any more."""
        return self._running.done() and not self.running

    def join(self, rank: int) -> None:
        if not 0 <= rank < self.workers:
            raise Refused(f"rank {rank} does not belong to a job of {self.workers} ranks")
        if rank in self.ranks:
            raise Refused(f"rank {rank} has joined already")
        self.ranks.add(rank)

    async def init(self, rank: int, init: Init) -> None:
        """Returns when the job runs; raises what keeps it from running, for every rank alike."""
        try:
            if rank == 0:
                self.packed = init.table
                self.table = await asyncio.to_thread(decode, init.table)
                self._check(self.table, init)
                self._first, self.node = init, init.node
                self.updates = init.rule.updates
                self._call_hubs(self.table, init)
            self._digests[rank] = init
            self._compare()
        except DovetailError as error:
            self.fail(error)
        self._try_start()
        await asyncio.shield(self._running)

    def expects(self, intro: Intro) -> str:
        """Why a data link cannot be taken, or nothing."""
        key = (intro.node, intro.lane)
        if self.over:
            return "the job has failed"
        if intro.token == self.guest_token:
            known = self.table is not None and self.native is not None
            first = self.table.nodes if self.table is not None else 0
            return "" if known and first <= intro.node < first + self._guests else "an unknown guest"
        if self.running or key in self._links:
            return f"node {intro.node} lane {intro.lane} is linked already"
        if self.table is not None and key not in self._wanted(self.table):
            return f"node {intro.node} lane {intro.lane} has no link to this hub"
        return ""

    def link(self, intro: Intro, wire: Wire) -> None:
        """Take a link that `expects` let in."""
        if intro.token == self.guest_token:
            assert self.native is not None
            self.native.link(intro.node, intro.lane, wire.sock.detach())
            return
        self._links[intro.node, intro.lane] = wire
        self._try_start()

    def invite(self) -> int:
        """A node number for a client that only reads."""
        if not self.running or self.table is None:
            raise Refused(f"the job {self.namespace!r} does not run yet; try again")
        if not self.updates:
            raise Refused(f"the job {self.namespace!r} updates at its workers, so the hub holds no parameters")
        self._guests += 1
        return self.table.nodes + self._guests - 1

    def fail(self, error: DovetailError) -> None:
        """Before it runs: everybody who waits gets the error."""
        if not self._running.done():
            self._running.set_exception(error)
            self._running.exception()  # nobody may be waiting
        for wire in self._links.values():
            wire.close()
        self._links.clear()

    def lost(self, rank: int) -> None:
        """A rank's control connection ended without a goodbye."""
        if self.native is None:
            self.fail(Refused(f"rank {rank} left the job {self.namespace!r} before it started"))
        elif self.native.failure() is None:
            self.native.fail(rank, "its connection to the hub was lost")

    async def close(self) -> None:
        """Free everything; peers that are still here hear a goodbye, or why the job failed."""
        self.fail(Refused(f"the job {self.namespace!r} was ended by the hub"))
        for task in self._tasks:
            task.cancel()
        if self.native is not None:
            await asyncio.to_thread(self.native.close)
        self._first = None
        self.native = self.table = None

    def _check(self, table: Table, init: Init) -> None:
        if table.workers != self.workers or not table.workers <= init.node < table.nodes:
            raise BadInput(f"a table for {table.workers} ranks and {table.hubs} hubs, given to node {init.node}")
        init.rule.check_types(table.tensors)
        if len(init.labels) != table.nodes or len(init.hubs) != table.hubs:
            raise BadInput(f"{len(init.labels)} names and {len(init.hubs)} hubs for {table.nodes} nodes")

    def _compare(self) -> None:
        if self._first is None:
            return
        for rank, init in self._digests.items():
            for what in ("digest", "rule", "deterministic", "timeout", "node"):
                if getattr(init, what) != getattr(self._first, what):
                    name = "chunk table" if what == "digest" else what
                    raise Mismatch(f"rank {rank} has another {name} than rank 0; every rank must train the same model")

    def _wanted(self, table: Table) -> set[Key]:
        return {(peer, lane) for peer in table.peers(self.node) for lane in range(table.lanes)}

    def _try_start(self) -> None:
        """Start when all ranks agree and all links are there."""
        if self._starting or self._running.done() or self.table is None or len(self._digests) < self.workers:
            return
        if not self._wanted(self.table) <= set(self._links):
            return
        self._starting = True
        self._spawn(self._start(self.table))

    async def _start(self, table: Table) -> None:
        init = self._first
        assert init is not None
        try:
            native = await asyncio.to_thread(self._build, table, init)
        except Exception as error:  # out of memory, a table the engine refuses: the hub lives on
            self.fail(Refused(f"the hub cannot run the job: {error}"))
            return
        if self._running.done():
            native.close()
            return
        self.native = native
        self._running.set_result(None)

    def _build(self, table: Table, init: Init) -> NativeJob:
        job = self._engine.job(self.namespace, self.node, init.labels, self.workers, init.deterministic, init.timeout)
        give(job, table.for_node(self.node))
        job.rule(init.rule.code, init.rule.flags)
        links, self._links = self._links, {}
        for (peer, lane), wire in sorted(links.items()):
            if (peer, lane) in self._wanted(table):
                job.link(peer, lane, wire.sock.detach())
            else:
                wire.close()
        job.start()
        return job

    def _call_hubs(self, table: Table, init: Init) -> None:
        """Hubs that exchange anything: the one with the higher number dials."""
        for peer, lane in sorted(self._wanted(table)):
            if self.workers <= peer < self.node:
                address, nonce = init.hubs[peer - self.workers]
                host, port = parse_address(address)
                target = Target(label=init.labels[peer], host=host, port=port, secret=self._secret)
                self._spawn(self._call_hub(target, Intro("data", nonce, self.node, lane), peer))

    async def _call_hub(self, target: Target, intro: Intro, peer: int) -> None:
        try:
            wire = await connect(target, intro, seconds=HUB_LINKS)
        except DovetailError as error:
            self.fail(error)
            return
        self._links[peer, intro.lane] = wire
        self._try_start()

    def _spawn(self, main: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(main)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
