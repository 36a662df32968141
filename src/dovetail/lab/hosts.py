"""What labs have in common: named hosts with addresses, and processes on them that end with the lab."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from dovetail.errors import BadInput
from dovetail.lab.layout import Layout, Node, layout


class Hosts(ABC):
    """Hosts to run commands on; a context manager, and no process outlives it."""

    interface: str  # every host's
    master_port: int  # for torch's rendezvous; the 50 after it are for more jobs at a time
    hub_port: int

    def __init__(self, plan: Layout) -> None:
        self.layout = plan
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the worker hosts: host0, host1, ..."""
        return tuple(node.name for node in self.layout.hosts)

    @property
    def hubs(self) -> tuple[str, ...]:
        """Names of the hub hosts: hub0, ..."""
        return tuple(node.name for node in self.layout.hubs)

    def node(self, host: str | int) -> Node:
        """A host by name, or a worker host by number."""
        if isinstance(host, int) and 0 <= host < len(self.layout.hosts):
            return self.layout.hosts[host]
        for node in self.layout.nodes:
            if node.name == host:
                return node
        raise BadInput(f"the lab has no host {host!r}; it has {', '.join(n.name for n in self.layout.nodes)}")

    def address(self, host: str | int) -> str:
        """The host's address on the lab's network."""
        return self.node(host).address

    def hub_address(self, hub: str) -> str:
        """Where `dovetail hub` listens on a hub host, as HOST:PORT."""
        return f"{self.address(hub)}:{self.hub_port}"

    @abstractmethod
    def command(self, host: str | int, argv: Sequence[str]) -> list[str]:
        """`argv` as a command line that runs it on the host."""

    def popen(
        self, host: str | int, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start `argv` on the host, as its own process group (end it with `os.killpg`); `env` is added to ours."""
        process = subprocess.Popen(
            self.command(host, argv), env={**os.environ, **(env or {})}, start_new_session=True, **options
        )
        self._processes.append(process)
        return process

    def run(self, host: str | int, argv: Sequence[str], *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run `argv` on the host to its end and give its output."""
        return subprocess.run(self.command(host, argv), capture_output=True, text=True, timeout=timeout, check=False)

    def close(self) -> None:
        """End every process that was started here."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Loopback(Hosts):
    """All hosts are this machine, where no network can be made: nothing is shaped, and rates are only told."""

    interface = "lo"

    def __init__(self, hosts: int, rate: float, *, hubs: int = 0, hub_rate: float | None = None) -> None:
        if hubs > 1:
            raise BadInput(f"{hubs} hubs on loopback; without network namespaces there can be 1")
        plan = layout(hosts=hosts, rate=rate, hubs=hubs, hub_rate=hub_rate, address="127.0.0.1")
        super().__init__(plan)
        self.master_port, self.hub_port = _free_port(), _free_port()

    def command(self, host: str | int, argv: Sequence[str]) -> list[str]:
        """As it is: every host is here."""
        self.node(host)
        return list(argv)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
