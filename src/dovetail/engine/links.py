"""All connections of one node: dialled and accepted at the same time, each proved, in bounded time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from dovetail.engine.address import format_address
from dovetail.engine.control import Intro
from dovetail.engine.handshake import LIMIT, Wire, answer, dial
from dovetail.errors import BadInput, Refused, Unreachable

T = TypeVar("T")
Key = tuple[int, int]  # peer, lane
MAX_PENDING = 256  # strangers in the middle of a handshake; the oldest goes when more come
RETRY = 0.1  # seconds between attempts to reach an address that refuses


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Somebody to dial: `label` names it in errors."""

    label: str
    host: str
    port: int
    secret: str

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end from plain code, also where an event loop is already running (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main).result()


async def connect(target: Target, intro: Intro, *, seconds: float) -> Wire:
    """A proved connection; an address that refuses is tried again until the time is over."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        wire: Wire | None = None
        try:
            async with asyncio.timeout(max(0.01, end - loop.time())):
                wire = await _open(target)
            await dial(wire, secret=target.secret, intro=msgspec.msgpack.encode(intro), limit=max(LIMIT, seconds / 4))
            return wire
        except (Refused, Unreachable) as error:
            _close(wire)
            raise type(error)(f"{target.label} at {target.address}: {error}") from None
        except OSError as error:
            _close(wire)
            if loop.time() + RETRY >= end:
                why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
                raise Unreachable(
                    f"{target.label} at {target.address} cannot be reached within {seconds:.3g} s: {why}; "
                    "is it running, and does a firewall let us through?"
                ) from None
            await asyncio.sleep(RETRY)
        except BaseException:
            _close(wire)
            raise


async def gather(
    listener: socket.socket,
    *,
    secret: str,
    accept: Mapping[Key, str],
    targets: Iterable[tuple[Key, Target, str]],
    intro: Intro,
    seconds: float,
) -> dict[Key, Wire]:
    """Every link of a node: those in `accept` (with the name of who should dial) come in, `targets` are dialled.

    Each target comes with its own token; `intro` says who we are and carries the token that dialers must show.
    """
    links: dict[Key, Wire] = {}
    complete = asyncio.Event()

    def judge(raw: bytes) -> str:
        try:
            found = msgspec.msgpack.decode(raw, type=Intro)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return "an introduction that is not understood"
        if found.role != "data" or found.token != intro.token:
            return "another job"
        if (found.node, found.lane) not in accept or (found.node, found.lane) in links:
            return f"node {found.node} lane {found.lane} is not expected here"
        return ""

    async def welcome(wire: Wire) -> None:
        found = msgspec.msgpack.decode(await answer(wire, secret=secret, judge=judge), type=Intro)
        key = (found.node, found.lane)
        if key in links:  # the same one twice at once
            raise Refused(f"node {found.node} lane {found.lane} came twice")
        links[key] = wire
        if all(k in links for k in accept):
            complete.set()

    async def call(key: Key, target: Target, token: str) -> None:
        links[key] = await connect(target, Intro("data", token, intro.node, key[1]), seconds=seconds)

    server = asyncio.ensure_future(serve(listener, welcome))
    try:
        if not accept:
            complete.set()
        # A dial that ends by itself at the same time tells more, so it is let end first.
        async with asyncio.timeout(seconds + RETRY), asyncio.TaskGroup() as group:
            for key, target, token in targets:
                group.create_task(call(key, target, token))
            await complete.wait()
    except TimeoutError:
        _close_all(links)
        missing = sorted({name for key, name in accept.items() if key not in links})
        names = ", ".join(missing) or "a peer"
        raise Unreachable(
            f"{names} did not connect to us within {seconds:g} s; has it failed or is it blocked?"
        ) from None
    except BaseExceptionGroup as several:
        _close_all(links)
        raise several.exceptions[0] from None
    except BaseException:
        _close_all(links)
        raise
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    return links


async def serve(listener: socket.socket, welcome: Callable[[Wire], Coroutine[Any, Any, None]]) -> None:
    """Accept for ever; each visitor is welcomed beside the others, and one that fails is closed.

    `welcome` owns the wire once it returns. Visitors that it has not finished with are ended with the server.
    """
    loop = asyncio.get_running_loop()
    pending: dict[asyncio.Task[None], Wire] = {}

    async def guard(wire: Wire) -> None:
        try:
            await welcome(wire)
        except (OSError, BadInput):
            wire.close()
        except BaseException:
            wire.close()
            raise

    try:
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(RETRY)  # out of descriptors: those who are here go on, and some will leave
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(pending) >= MAX_PENDING:
                next(iter(pending)).cancel()
            wire = Wire(sock)
            task = asyncio.create_task(guard(wire))
            pending[task] = wire
            task.add_done_callback(pending.pop)
    finally:
        for task in list(pending):
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _open(target: Target) -> Wire:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        raise Unreachable("the name is unknown") from None
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return Wire(sock)


def _close(wire: Wire | None) -> None:
    if wire is not None:
        wire.close()


def _close_all(links: Mapping[Key, Wire]) -> None:
    for wire in links.values():
        wire.close()
