"""A client's side of the talk with hubs: register a job, join it, attach to one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from dovetail.engine import control
from dovetail.engine.control import Connect, Create, Created, Failed, Init, Intro, Message, Ready
from dovetail.engine.handshake import Wire
from dovetail.engine.links import Target, connect
from dovetail.engine.peers import Meeting
from dovetail.errors import DovetailError, Unreachable

M = TypeVar("M", bound=Message)


async def register(meeting: Meeting, namespace: str, hubs: Sequence[Target], wires: list[Wire]) -> list[str]:
    """Connect to every hub (appending to `wires`); rank 0 creates the job there, and all get its nonces."""
    for hub in hubs:
        wires.append(await connect(hub, Intro("control"), seconds=meeting.left))
    if not hubs:
        return []
    if meeting.rank == 0:
        create = Create(namespace, meeting.world)
        nonces = [
            (await ask(w, hub, create, Created, seconds=meeting.left)).nonce for w, hub in zip(wires, hubs, strict=True)
        ]
        await asyncio.to_thread(meeting.publish, "hubs", nonces)
        return nonces
    waits_for = "rank 0 to register the job at the hubs"
    return await asyncio.to_thread(lambda: meeting.read("hubs", list[str], waits_for=waits_for))


async def join(wire: Wire, hub: Target, connect: Connect, init: Init, *, seconds: float) -> None:
    """Take a rank's place in the job; returns when the hub has all links of all ranks and runs it."""
    await ask(wire, hub, connect, Ready, seconds=seconds)
    await ask(wire, hub, init, Ready, seconds=seconds)


async def ask(wire: Wire, hub: Target, message: Message, kind: type[M], *, seconds: float) -> M:
    """The hub's answer, which must be of `kind`; what it refuses is raised here."""
    who = f"{hub.label} at {hub.address}"
    try:
        async with asyncio.timeout(max(1.0, seconds)):
            await control.send(wire, message)
            answer = await control.receive(wire, limit=control.LARGE)
    except TimeoutError:
        raise Unreachable(f"{who}: no answer within {seconds:.0f} s; has a rank failed, or is it blocked?") from None
    except OSError as error:
        if isinstance(error, DovetailError):
            raise
        raise Unreachable(f"{who}: the connection was lost ({error})") from None
    if isinstance(answer, Failed):
        raise answer.error(who)
    if not isinstance(answer, kind):
        raise Unreachable(f"{who}: answered with {type(answer).__name__} where {kind.__name__} was due")
    return answer
