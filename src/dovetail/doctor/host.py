"""What is installed, which interface a job would use, and whether a lab can be made."""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import ipaddress
import os
import platform
import queue
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

from dovetail.doctor.check import BROKEN, GOOD, LIMITED, Check
from dovetail.engine.address import facing, parse_address
from dovetail.errors import BadInput
from dovetail.lab import available

LEAST_TORCH = (2, 6)
PATIENCE = 5.0  # seconds for a name to be found
_SIOCGIFADDR = 0x8915


def versions() -> Check:
    """The pieces a job is made of."""
    found = {"dovetail": _version("dovetail"), "torch": _version("torch"), "python": platform.python_version()}
    found["kernel"] = platform.release()
    line = ", ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
    line += f", {os.cpu_count()} cores"
    problem = _missing(found["torch"])
    return Check(
        name="versions",
        state=BROKEN if problem else GOOD,
        found=line,
        advice=problem,
        figures={**found, "cores": os.cpu_count() or 0},
    )


def _missing(torch: str) -> str:
    if not torch:
        return "install PyTorch: pip install torch"
    if tuple(int(part) for part in torch.split("+")[0].split(".")[:2]) < LEAST_TORCH:
        return f"dovetail needs torch {'.'.join(map(str, LEAST_TORCH))} or newer: pip install --upgrade torch"
    try:
        importlib.import_module("dovetail._native")
    except ImportError as error:
        return f"the native engine cannot be loaded ({error}); run `make setup`, or `pip install .` in a clone"
    return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def interface(host: str, environment: Mapping[str, str]) -> Check:
    """The address that this machine would give to its peers, and why that one."""
    towards, source, why = _towards(host, environment)
    problem = _unknown(towards) if towards else ""
    if problem and host:
        raise BadInput(f"--facing {host!r}: {problem}; give a peer's name or address")
    if problem:
        return Check(
            name="network",
            state=BROKEN,
            found=f"{source}={environment[source]}: {problem}",
            advice=f"a job that is started with this {source} cannot meet: set it to a name or address that is known",
            figures={"why": problem},
        )
    address = facing(towards or "192.0.2.1")
    device = device_of(address)
    loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    advice = ""
    if loopback and not towards:
        advice = "no route leads outward, so only ranks on this machine can meet; connect a network for more"
    elif loopback and host:
        advice = f"{host} is this machine itself; ask with the address of another one: dovetail doctor --facing HOST"
    return Check(
        name="network",
        state=LIMITED if advice else GOOD,
        found=f"{address} on {device or 'an unknown device'}: {why}",
        advice=advice,
        figures={"address": address, "device": device, "why": why},
    )


def _unknown(host: str) -> str:
    """What is wrong with the name, in words; empty if it leads to an address."""
    answer: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
            answer.put("")
        except (OSError, UnicodeError):
            answer.put("no such host is known here")

    # The resolver itself has no bound: a name server that is gone takes it half a minute and more.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.get(timeout=PATIENCE)
    except queue.Empty:
        return f"nobody has told within {PATIENCE:g} s who that is"


def _towards(host: str, environment: Mapping[str, str]) -> tuple[str, str, str]:
    """The host whose route decides, as when a job opens, the variable that names it, and the reason in words."""
    if host:
        return host, "", f"its route leads to {host}"
    master = environment.get("MASTER_ADDR", "")
    if master:
        return master, "MASTER_ADDR", f"its route leads to {master} (MASTER_ADDR)"
    hub = environment.get("DOVETAIL_HUBS", "").split(",")[0].strip()
    if hub:
        return parse_address(hub)[0], "DOVETAIL_HUBS", f"its route leads to {hub} (DOVETAIL_HUBS)"
    return "", "", "its route leads outward (neither MASTER_ADDR nor DOVETAIL_HUBS is set)"


def device_of(address: str) -> str:
    """The name of the device that has the address; empty when none has."""
    bare, _, scope = address.partition("%")
    wanted = ipaddress.ip_address(bare)
    if scope:
        return scope
    if wanted.version == 6:
        table = Path("/proc/net/if_inet6")
        rows = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
        return next((row[-1] for row in rows if row[0] == f"{int(wanted):032x}"), "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has no IPv4 address
            if answer[20:24] == wanted.packed or (wanted.is_loopback and name == "lo"):
                return name
    return ""


def lab_rights() -> Check:
    """Whether network namespaces with shaped links can be made here."""
    allowed, reason = available()
    return Check(
        name="lab",
        state=GOOD if allowed else LIMITED,
        found="network namespaces and shaped links can be made" if allowed else reason,
        advice=""
        if allowed
        else "demo and benches run on loopback instead; for a lab install what is missing, become root, or allow "
        "user namespaces (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)",
        figures={"available": str(allowed).lower()},
    )
