"""Who is on the other end: a challenge and response with HMAC-SHA256 on every connection, both ways.

    dialer                                   acceptor
    magic version nonce_d               ->
                                        <-   magic version nonce_a
    mac(dial) length intro              ->
                                        <-   0 mac(accept)   or   1 length reason

A mac covers its role, both nonces and the intro, keyed with the secret, so nothing can be replayed or
reflected, and the acceptor proves itself only to a dialer that has proved itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import struct
from collections.abc import Callable

from dovetail.errors import Refused, Unreachable

MAGIC = b"DOVETAIL"
VERSION = 1
LIMIT = 5.0  # seconds a peer may take for its part
MAX_INTRO = 4096
_HELLO = struct.Struct("<B32s")  # version and nonce, after the magic
_LENGTH = struct.Struct("<H")
_MAC = hashlib.sha256().digest_size


class Wire:
    """A connected socket read and written in whole pieces; nothing is read ahead, so the socket can be handed on."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock

    async def read(self, count: int) -> bytes:
        """Exactly `count` bytes; ConnectionError when the peer closes before."""
        data = bytearray(count)
        view = memoryview(data)
        loop = asyncio.get_running_loop()
        while view:
            got = await loop.sock_recv_into(self.sock, view)
            if got == 0:
                raise ConnectionError("the connection was closed")
            view = view[got:]
        return bytes(data)

    async def write(self, data: bytes | memoryview) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    def close(self) -> None:
        self.sock.close()


async def dial(wire: Wire, *, secret: str, intro: bytes, limit: float = LIMIT) -> None:
    """Prove the secret and check that the acceptor has it too; Refused or Unreachable otherwise."""
    mine = secrets.token_bytes(32)
    try:
        async with asyncio.timeout(limit):
            await wire.write(MAGIC + _HELLO.pack(VERSION, mine))
            theirs = await _nonce(wire)
            proof = _mac(secret, b"dial", mine, theirs, intro)
            await wire.write(proof + _LENGTH.pack(len(intro)) + intro)
            if (await wire.read(1)) != b"\0":
                (length,) = _LENGTH.unpack(await wire.read(_LENGTH.size))
                raise Refused((await wire.read(length)).decode(errors="replace"))
            if not hmac.compare_digest(await wire.read(_MAC), _mac(secret, b"accept", mine, theirs, intro)):
                raise Refused("it does not know the secret either side should have")
    except TimeoutError:
        raise Unreachable(f"it did not answer within {limit:g} s; is it a dovetail hub or rank?") from None
    except OSError as error:
        if isinstance(error, Refused | Unreachable):
            raise
        raise Unreachable(f"it does not speak dovetail's protocol ({error})") from None


async def answer(wire: Wire, *, secret: str, judge: Callable[[bytes], str], limit: float = LIMIT) -> bytes:
    """The intro of a dialer that proved the secret and that `judge` let in (it returns why not, or nothing)."""
    mine = secrets.token_bytes(32)
    try:
        async with asyncio.timeout(limit):
            theirs = await _nonce(wire)
            await wire.write(MAGIC + _HELLO.pack(VERSION, mine))
            proof = await wire.read(_MAC)
            (length,) = _LENGTH.unpack(await wire.read(_LENGTH.size))
            if length > MAX_INTRO:
                raise Refused(f"an introduction of {length} bytes")
            intro = await wire.read(length)
            if not hmac.compare_digest(proof, _mac(secret, b"dial", theirs, mine, intro)):
                reason = "wrong secret"
            else:
                reason = judge(intro)
            if reason:
                text = reason.encode()[:MAX_INTRO]
                await wire.write(b"\1" + _LENGTH.pack(len(text)) + text)
                raise Refused(reason)
            await wire.write(b"\0" + _mac(secret, b"accept", theirs, mine, intro))
            return intro
    except TimeoutError:
        raise Unreachable(f"it did not introduce itself within {limit:g} s") from None
    except OSError as error:
        if isinstance(error, Refused | Unreachable):
            raise
        raise Unreachable(f"it left during the handshake ({error})") from None


async def _nonce(wire: Wire) -> bytes:
    # The magic first: another kind of server may greet with less than a hello and wait.
    if await wire.read(len(MAGIC)) != MAGIC:
        raise Unreachable("it does not speak dovetail's protocol")
    version, nonce = _HELLO.unpack(await wire.read(_HELLO.size))
    if version != VERSION:
        raise Refused(f"it speaks protocol version {version} and this is version {VERSION}; install the same dovetail")
    return bytes(nonce)


def _mac(secret: str, role: bytes, dialer: bytes, acceptor: bytes, intro: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"dovetail " + role + dialer + acceptor + intro, "sha256")
