"""One rank opens a job: meet, compare, connect to peers and hubs, start the native engine."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.engine.address import facing, format_address, listen, parse_address
from dovetail.engine.binding import NativeEngine, NativeJob, give, make_engine
from dovetail.engine.control import Connect, Init, Intro
from dovetail.engine.handshake import Wire
from dovetail.engine.joining import join, register
from dovetail.engine.links import Key, Target, gather, run
from dovetail.engine.peers import Card, Meeting, Store, check_same, digest
from dovetail.engine.rule import Rule
from dovetail.engine.table import Table, TensorSpec, build, encode
from dovetail.errors import BadInput
from dovetail.plan.schedule import Plan

Connected = tuple[dict[Key, Wire], list[Wire]]  # data links; control connections, one a hub
BACKLOG = 64 * 1024  # bytes that may wait in the kernel for one peer, where nothing can overtake them
WATCH = 0.5  # seconds between looks whether another rank gave up


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the engine works; none of these changes a result, except that `deterministic` fixes the order of sums."""

    chunk_bytes: int | None = None  # None: what the plan says
    lanes: int = 0  # connections between two nodes; 0 = the engine's own choice
    threads: int = 1
    credit: int = 0  # bytes that may wait in the kernel per connection; 0 = the engine's own choice
    rate: float = 0.0  # bytes per second out of this node; 0 = unlimited
    deterministic: bool = False
    timeout: float = 4.0  # seconds of silence after which a peer is lost; 0 = never
    patience: float = 30.0  # seconds in which all ranks and hubs must have come together
    trace: bool = False
    secret: str = ""  # what the hubs ask for
    facing: str = ""  # we listen on the interface that leads to this host; empty = where the store is, or a hub
    groups: tuple[tuple[int, ...], ...] | None = None  # racks, for the patterns that know them
    shares: tuple[float, ...] | None = None  # of the masters' work, one a rank; None = even
    every_pair: bool = False  # also ranks that have nothing to send each other are connected, so that masters can move

    def __post_init__(self) -> None:
        if self.lanes < 0 or self.threads < 1:
            raise BadInput(f"{self.lanes} lanes on {self.threads} threads; give 0 or more lanes and 1 or more threads")
        if min(self.credit, self.rate, self.timeout) < 0 or not self.patience > 0:
            raise BadInput("credit, rate and timeout must be 0 or more, and patience above 0")

    @property
    def shared(self) -> dict[str, object]:
        """What must be equal on all ranks."""
        names = ("chunk_bytes", "lanes", "deterministic", "groups", "shares", "every_pair")
        return {name: value for name, value in asdict(self).items() if name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a rank asks for; everything but `rank` is meant to be equal on all of them."""

    rank: int
    world: int
    plan: Plan
    tensors: tuple[TensorSpec, ...]
    hubs: tuple[str, ...]
    rule: Rule
    options: Options
    namespace: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise BadInput(f"rank {self.rank} of {self.world}; ranks count from 0")
        self.rule.check_types(self.tensors)
        if self.rule.updates and self.plan.aggregation not in ("hub", "shuffle"):
            raise BadInput(
                f"aggregation {self.plan.aggregation!r} cannot run the optimizer at the aggregator; "
                "use 'hub' or 'shuffle', or update at the worker"
            )

    @property
    def digests(self) -> dict[str, str]:
        shown = self.shown
        return {"tensors": digest(self.tensors), "plan": digest(self.plan)} | {
            what: digest(shown[what]) for what in ("update rule", "settings", "hubs")
        }

    @property
    def shown(self) -> dict[str, str]:
        plan = self.plan
        return {
            "plan": f"{plan.policy!r} over {plan.aggregation!r} ({len(plan.transfers)} transfers, {digest(plan)[:8]})",
            "update rule": str(self.rule),
            "settings": str(self.options.shared),
            "hubs": ", ".join(self.hubs) or "no hubs",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What nodes are called in messages, and where the hubs are."""

    labels: tuple[str, ...]  # one a node
    hubs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A running job as its rank holds it."""

    engine: NativeEngine
    job: NativeJob
    table: Table
    request: Request
    labels: tuple[str, ...]
    controls: tuple[socket.socket, ...]


def open_job(store: Store, request: Request) -> Opened:
    """Meet all other ranks and hubs and start; every failure is one clear line on every rank, in bounded time."""
    options = request.options
    meeting = Meeting(store, rank=request.rank, world=request.world, name=request.namespace, seconds=options.patience)
    try:
        with listen(facing(_rendezvous_host(store, request))) as listener:
            return _open(meeting, request, listener)
    except BaseException as error:
        meeting.spoil(error)
        raise


def _open(meeting: Meeting, request: Request, listener: socket.socket) -> Opened:
    address = format_address(*listener.getsockname()[:2])
    token = secrets.token_hex(16) if request.rank == 0 else ""
    cards = meeting.cards(Card(address, socket.gethostname(), request.digests, token))
    check_same(meeting, cards, shown=request.shown, tensors=request.tensors)
    options = request.options
    # Where a rank sends all to one other, as to a hub or around a ring, two connections would only race each other;
    # among many peers a second one evens out what TCP shares unevenly. (docs/decisions.md)
    one = request.hubs or (request.plan.aggregation == "ring" and options.threads == 1)  # a thread has lanes of its own
    lanes = options.lanes or (1 if one else 2)
    table = table_of(request, lanes=lanes, shares=options.shares)
    hubs = [format_address(*parse_address(text)) for text in request.hubs]
    labels = [f"rank {r} at {card.address}" for r, card in enumerate(cards)]
    labels += [f"hub {i} at {where}" for i, where in enumerate(hubs)]
    names = Names(labels=tuple(labels), hubs=tuple(hubs))
    links, wires = run(_watched(_connect_all(meeting, request, table, listener, cards, names), meeting))

    credit = options.credit or BACKLOG // lanes
    engine = make_engine(threads=options.threads, rate=options.rate, credit=credit, trace=options.trace)
    try:
        job = engine.job(request.namespace, request.rank, labels, request.world, options.deterministic, options.timeout)
        give(job, table.for_node(request.rank))
        job.rule(request.rule.code, request.rule.flags)
        for (peer, lane), wire in sorted(links.items()):
            job.link(peer, lane, wire.sock.detach())
        job.start()
    except BaseException:
        for wire in (*links.values(), *wires):
            wire.close()
        raise
    return Opened(
        engine=engine,
        job=job,
        table=table,
        request=request,
        labels=tuple(labels),
        controls=tuple(wire.sock for wire in wires),
    )


def table_of(request: Request, *, lanes: int, shares: Sequence[float] | None) -> Table:
    """The chunk table of a request, with the masters' work shared out like this (None = evenly)."""
    return build(
        request.plan,
        request.tensors,
        workers=request.world,
        hubs=len(request.hubs),
        lanes=lanes,
        chunk_bytes=request.options.chunk_bytes,
        groups=request.options.groups,
        shares=shares,
    )


async def _watched(main: Coroutine[Any, Any, Connected], meeting: Meeting) -> Connected:
    """The result of `main`, or at once what another rank failed with."""
    task = asyncio.ensure_future(main)
    try:
        while not (await asyncio.wait({task}, timeout=WATCH))[0]:
            error = await asyncio.to_thread(meeting.broken)
            if error is not None:
                raise error
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _connect_all(
    meeting: Meeting, request: Request, table: Table, listener: socket.socket, cards: Sequence[Card], names: Names
) -> Connected:
    """All data links, and a control connection to each hub on which it has said Ready."""
    rank, world = request.rank, request.world
    secret = cards[0].token
    badge = digest(secret)  # shown in the open, so it must not tell the secret
    services = [_target(f"hub {i}", where, request.options.secret) for i, where in enumerate(names.hubs)]
    ranks = [_target(f"rank {r}", card.address, secret) for r, card in enumerate(cards)]
    peers = {*table.peers(rank), *(range(world) if request.options.every_pair else ())} - {rank}
    wanted = [(peer, lane) for peer in sorted(peers) for lane in range(table.lanes)]
    wires: list[Wire] = []
    links: dict[Key, Wire] = {}
    try:
        nonces = await register(meeting, request.namespace, services, wires)
        tokens = [badge] * world + nonces
        dialled = [((p, lane), (ranks + services)[p], tokens[p]) for p, lane in wanted if p < rank or p >= world]
        async with asyncio.TaskGroup() as group:
            for i, wire in enumerate(wires):
                init = Init(
                    digest=table.digest,
                    table=encode(table) if rank == 0 else b"",
                    rule=request.rule,
                    deterministic=request.options.deterministic,
                    timeout=request.options.timeout,
                    node=world + i,
                    labels=list(names.labels),
                    hubs=list(zip(names.hubs, nonces, strict=True)),
                )
                group.create_task(join(wire, services[i], Connect(nonces[i], rank), init, seconds=meeting.left))
            links |= await gather(
                listener,
                secret=secret,
                accept={(p, lane): names.labels[p] for p, lane in wanted if rank < p < world},
                targets=dialled,
                intro=Intro("data", badge, rank),
                seconds=meeting.left,
            )
    except BaseException as error:
        for wire in (*links.values(), *wires):
            wire.close()
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise
    return links, wires


def _target(label: str, address: str, secret: str) -> Target:
    host, port = parse_address(address)
    return Target(label=label, host=host, port=port, secret=secret)


def store_host(store: Any) -> str:
    """Where the store is served, under whatever wraps it; empty when it does not say."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", None) or "")


def _rendezvous_host(store: Store, request: Request) -> str:
    hub = parse_address(request.hubs[0])[0] if request.hubs else ""
    return request.options.facing or store_host(store) or hub or "localhost"
