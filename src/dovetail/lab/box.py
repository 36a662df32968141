"""The lab itself: network namespaces joined by bridges, which vanish with the process that made them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

from dovetail.lab.hosts import Hosts
from dovetail.lab.keeper import Keeper, LabError
from dovetail.lab.layout import NETWORK, PREFIX_LENGTH, Layout, layout
from dovetail.lab.shape import segment, tbf

INTERFACE = "eth0"  # of every host

# The same on every machine, and the fairest of the three that kernels come with: 12 flows all-to-all between 4 hosts
# got 140 to 187 Mbit/s each, with cubic 24 to 312, with bbr 34 to 266.
_CONGESTION = "reno"


class Lab(Hosts):
    """Hosts in network namespaces with shaped links."""

    interface = INTERFACE
    master_port, hub_port = 29500, 7171  # hosts are alone on their addresses

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
        plan = layout(
            hosts=hosts,
            rate=rate,
            hubs=hubs,
            hub_rate=hub_rate,
            racks=racks,
            uplink=uplink,
            shuffle_seed=shuffle_seed,
        )
        super().__init__(plan)
        shaped = [r for r in (*(node.rate for node in plan.nodes), plan.uplink) if r]
        self.unit = segment(min(shaped, default=0.0))
        self._keeper = Keeper()
        try:
            _build(self, plan)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def command(self, host: str | int, argv: Sequence[str]) -> list[str]:
        """`argv` as a command line that runs it on the host."""
        netns = f"/proc/{self._keeper.pid}/root/run/netns/{self.node(host).name}"
        return [*self._keeper.enter, "--pid", f"--net={netns}", "--", *argv]

    def set_rate(self, host: str | int, rate: float) -> None:
        """Change the host's rate both ways, while traffic runs; 0 = unshaped."""
        node = self.node(host)
        _batch(self.command(node.name, ["tc"]), [_replace(INTERFACE, rate, self.unit)])
        _batch(self.fabric_command(["tc"]), [_replace(node.name, rate, self.unit)])

    def close(self) -> None:
        """End every process of the lab and remove its network."""
        self._keeper.close()
        super().close()  # what entered from outside has lost what it waited for, and is collected

    def fabric_command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command line that runs it among the bridges, where every host's link ends."""
        return [*self._keeper.enter, "--net", "--mount", "--pid", "--", *argv]


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
    _batch(lab.fabric_command(["ip"]), links)
    if shapes:
        _batch(lab.fabric_command(["tc"]), shapes)
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
