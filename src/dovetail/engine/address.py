"""Where nodes listen: addresses as people write them, and the interface that faces a given host."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from dovetail.errors import BadInput

DEFAULT_PORT = 7070
BACKLOG = 512
_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>[0-9]+))?")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port from `10.0.0.5:7070`, `hub1`, `[::1]:7070`; the port defaults to 7070."""
    found = _ADDRESS.fullmatch(text.strip())
    host = (found["six"] or found["host"]) if found else text.strip()
    port = int(found["port"] or DEFAULT_PORT) if found else DEFAULT_PORT  # a bare IPv6 address has no port
    if not 0 < port < 65536 or not (found or _is_address(host)):
        raise BadInput(f"address {text!r} is not understood; write it like 10.0.0.5:7070 or hub1:7070")
    return host, port


def format_address(host: str, port: int) -> str:
    """The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def facing(host: str) -> str:
    """Our address on the interface that leads to `host` (nothing is sent); the outward one when that is unknown."""
    source = _source_to(host)
    if source is None or (_is_loopback(source) and not _names_loopback(host)):
        # A machine's own name often resolves to 127.0.1.1 on itself: others cannot reach that.
        source = _source_to("192.0.2.1") or _source_to("2001:db8::1") or source
    return source or "127.0.0.1"


def listen(host: str, port: int = 0) -> socket.socket:
    """A non-blocking listening socket; port 0 takes a free one."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror:
        raise BadInput(f"cannot listen on {host!r}: the name is unknown; give an address of this machine") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        at = format_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise BadInput(f"cannot listen on {at}: the port is in use; stop its owner or choose another") from None
        raise BadInput(f"cannot listen on {at}: {error.strerror}") from None
    sock.setblocking(False)
    return sock


def _source_to(host: str) -> str | None:
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _names_loopback(host: str) -> bool:
    return host in ("localhost", "ip6-localhost") or (_is_address(host) and _is_loopback(host))
