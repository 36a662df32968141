"""What clients and hubs say to each other before and beside the data: framed msgpack messages."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from dovetail import errors
from dovetail.engine.handshake import Wire
from dovetail.engine.rule import Rule
from dovetail.errors import DovetailError, Unreachable

SMALL = 1 << 16  # bytes of any message but an Init
LARGE = 1 << 30
_LENGTH = struct.Struct("<I")


class Intro(msgspec.Struct, frozen=True):
    """What a connection is for; travels inside the handshake and is covered by its mac."""

    role: str  # "control" or "data"
    token: str = ""  # data: the nonce of the job
    node: int = -1
    lane: int = 0


class Create(msgspec.Struct, frozen=True, tag=True):
    """create_service: take a name on the hub for a job of so many ranks."""

    namespace: str
    workers: int


class Created(msgspec.Struct, frozen=True, tag=True):
    nonce: str  # knowing it is the right to join


class Connect(msgspec.Struct, frozen=True, tag=True):
    """connect_service: this connection speaks for a rank of the job."""

    nonce: str
    rank: int


class Init(msgspec.Struct, frozen=True, tag=True):
    """init_service: what the job is; rank 0 sends the table, the others its digest, and all must agree."""

    digest: str
    table: bytes  # packed; empty but from rank 0
    rule: Rule
    deterministic: bool
    timeout: float
    node: int  # this hub's node number
    labels: list[str]
    hubs: list[tuple[str, str]]  # address and nonce of the job on each hub


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The step is done; after an Init: all links are there and the job runs."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """This rank goes on purpose."""


class Attach(msgspec.Struct, frozen=True, tag=True):
    """A client that only pulls wants to read the job's parameters."""

    namespace: str


class Attached(msgspec.Struct, frozen=True, tag=True):
    """What the client needs to open its links: it is the node `guest` there and shows `token`."""

    table: bytes
    node: int  # this hub's node number
    guest: int
    token: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request cannot be met; `kind` is a class of errors.py."""

    kind: str
    message: str

    def error(self, who: str) -> DovetailError:
        """The same as an exception to raise here."""
        found = getattr(errors, self.kind, None)
        known = isinstance(found, type) and issubclass(found, DovetailError)
        return (found if known else DovetailError)(f"{who}: {self.message}")  # type: ignore[misc]


Message = Create | Created | Connect | Init | Ready | Leave | Attach | Attached | Failed
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


async def send(wire: Wire, message: Message) -> None:
    await wire.write(pack(message))


async def receive(wire: Wire, *, limit: int = SMALL) -> Message:
    """The next message; Unreachable when it is too long or not one of ours."""
    (length,) = _LENGTH.unpack(await wire.read(_LENGTH.size))
    if length > limit:
        raise Unreachable(f"a message of {length} bytes, where at most {limit} are allowed")
    try:
        message: Message = _decoder.decode(await wire.read(length))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Unreachable(f"a message that is not understood ({error})") from None
    return message
