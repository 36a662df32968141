"""The lab itself: network namespaces joined by bridges, which vanish with the process that made them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any

from dovetail.errors import BadInput
from dovetail.lab.keeper import Keeper, LabError
from dovetail.lab.layout import NETWORK, PREFIX_LENGTH, Layout, Node, layout
from dovetail.lab.shape import segment, tbf

INTERFACE = "eth0"  # of every host

# The same on every machine, and the fairest of the three that kernels come with: 12 flows all-to-all between 4 hosts
# got 140 to 187 Mbit/s each, with cubic 24 to 312, with bbr 34 to 266.
_CONGESTION = "reno"


class Lab:
    """Hosts in network namespaces with shaped links; a context manager, and nothing outlives it."""

    def __init__(
        self,
        hosts: int,
        rate: float,
        *,
        hubs: int = 0,
        hub_rate: float | None = None,
        racks: int = 1,
        uplink: float = 0.0,
        shuffle_seed: int | None = None,
    ) -> None:
        self.layout = layout(
            hosts=hosts,
            rate=rate,
            hubs=hubs,
            hub_rate=hub_rate,
            racks=racks,
            uplink=uplink,
            shuffle_seed=shuffle_seed,
        )
        shaped = [r for r in (*(node.rate for node in self.layout.nodes), self.layout.uplink) if r]
        self.unit = segment(min(shaped, default=0.0))
        self._processes: list[subprocess.Popen[Any]] = []
        self._keeper = Keeper()
        try:
            _build(self, self.layout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
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

    def command(self, host: str | int, argv: Sequence[str]) -> list[str]:
        """`argv` as a command line that runs it on the host."""
        netns = f"/proc/{self._keeper.pid}/root/run/netns/{self.node(host).name}"
        return [*self._keeper.enter, "--pid", f"--net={netns}", "--", *argv]

    def popen(
        self, host: str | int, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start `argv` on the host, as its own process group (end it with `os.killpg`); `env` is added to ours."""
        process = subprocess.Popen(
            self.command(host, argv), env={**os.environ, **(env or {})}, start_new_session=True, **options
        )
        self._processes.append(process)
        return process

    def run(
        self, host: str | int, argv: Sequence[str], *, timeout: float = 60.0, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` on the host to its end and give its output."""
        return subprocess.run(
            self.command(host, argv), input=text, capture_output=True, text=True, timeout=timeout, check=False
        )

    def set_rate(self, host: str | int, rate: float) -> None:
        """Change the host's rate both ways, while traffic runs; 0 = unshaped."""
        node = self.node(host)
        _batch(self.command(node.name, ["tc"]), [_replace(INTERFACE, rate, self.unit)])
        _batch([*self._fabric(), "tc"], [_replace(node.name, rate, self.unit)])

    def close(self) -> None:
        """End every process of the lab and remove its network."""
        self._keeper.close()
        for process in self._processes:
            if process.poll() is None:
                # Its group died with the lab; only the one that entered, outside, may be left to end.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _fabric(self) -> list[str]:
        return [*self._keeper.enter, "--net", "--mount", "--pid", "--"]


@cache
def available() -> tuple[bool, str]:
    """Whether a lab can be made here, and if not, why."""
    missing = [tool for tool in ("ip", "tc", "unshare", "nsenter", "mount") if shutil.which(tool) is None]
    if missing:
        return False, f"{', '.join(missing)} not found (Debian: apt-get install iproute2 util-linux mount)"
    try:
        with Lab(hosts=1, rate=1e6):
            return True, ""
    except LabError as error:
        return False, str(error)


def _replace(device: str, rate: float, unit: int) -> list[str]:
    return ["qdisc", "replace", "dev", device, "root", *(tbf(rate, unit) if rate else ["pfifo", "limit", "1000"])]


def _batch(tool: list[str], lines: list[list[str]]) -> None:
    """Give `ip` or `tc` its commands in one go."""
    script = "".join(" ".join(line) + "\n" for line in lines)
    done = subprocess.run([*tool, "-batch", "-"], input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise LabError(f"the lab's network cannot be set up: {reason}")


def _build(lab: Lab, plan: Layout) -> None:
    """One bridge a rack, a core bridge over them if there are several, one veth pair a host, tbf at both its ends."""
    fabric = lab._fabric()
    size = ["gso_max_size", str(lab.unit)]
    links: list[list[str]] = []
    shapes: list[list[str]] = []
    for rack in range(plan.racks):
        links += [["link", "add", f"rack{rack}", "type", "bridge"], ["link", "set", f"rack{rack}", "up"]]
    if plan.racks > 1:
        links += [["link", "add", "core", "type", "bridge"], ["link", "set", "core", "up"]]
        for rack in range(plan.racks):
            up, down = f"up{rack}", f"down{rack}"
            links += [
                ["link", "add", up, *size, "type", "veth", "peer", "name", down, *size],
                ["link", "set", up, "master", f"rack{rack}", "up"],
                ["link", "set", down, "master", "core", "up"],
            ]
            if plan.uplink:
                shapes += [_replace(up, plan.uplink, lab.unit), _replace(down, plan.uplink, lab.unit)]
    for node in plan.nodes:
        links += [
            ["netns", "add", node.name],
            ["link", "add", node.name, *size, "type", "veth", "peer", "name", INTERFACE, *size, "netns", node.name],
            ["link", "set", node.name, "master", f"rack{node.rack}", "up"],
        ]
        if node.rate:
            shapes.append(_replace(node.name, node.rate, lab.unit))
    _batch([*fabric, "ip"], links)
    if shapes:
        _batch([*fabric, "tc"], shapes)
    for node in plan.nodes:
        address = f"{node.address}/{PREFIX_LENGTH}"
        inside = [
            ["link", "set", "lo", "up"],
            ["addr", "add", address, "dev", INTERFACE],
            ["link", "set", INTERFACE, "up"],
            ["route", "replace", NETWORK, "dev", INTERFACE, "src", node.address, "congctl", _CONGESTION],
        ]
        _batch(lab.command(node.name, ["ip"]), inside)
        if node.rate:
            _batch(lab.command(node.name, ["tc"]), [_replace(INTERFACE, node.rate, lab.unit)])
