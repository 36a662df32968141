"""One command on every host of a lab, as torchrun would start it: environment, output, exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any, TextIO

from dovetail.lab.hosts import Hosts

GRACE = 2.0  # seconds between asking a process to end and ending it


def environment(lab: Hosts, rank: int) -> dict[str, str]:
    """The variables torchrun sets, for the lab's host number `rank`."""
    values = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(lab.hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": lab.address(0),
        "MASTER_PORT": str(lab.master_port),
        "GLOO_SOCKET_IFNAME": lab.interface,
        # The lab has no name service, and torch warns about each connection whose name it cannot find.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }
    if lab.hubs:
        values["DOVETAIL_HUBS"] = hub_addresses(lab)
    return values


def hub_addresses(lab: Hosts) -> str:
    """The lab's hubs as `DOVETAIL_HUBS` names them."""
    return ",".join(map(lab.hub_address, lab.hubs))


def start_hubs(lab: Hosts, *arguments: str, **options: Any) -> list[subprocess.Popen[Any]]:
    """`dovetail hub` on every hub host, with further `arguments`; it says when it is ready."""
    program = [sys.executable, "-m", "dovetail.cli.main", "hub", "--port", str(lab.hub_port), *arguments]
    return [lab.popen(hub, [*program, "--bind", lab.address(hub)], **options) for hub in lab.hubs]


def run(lab: Hosts, argv: Sequence[str], *, out: TextIO | None = None) -> int:
    """Run `argv` on every host until all end; gives 0, or the code of the first to fail, whose end ends the rest."""
    target = out or sys.stdout
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    hubs = start_hubs(lab, **pipe)
    for name, hub in zip(lab.hubs, hubs, strict=True):
        assert hub.stdout is not None
        target.write(f"{name} | {hub.stdout.readline().decode(errors='replace')}")  # it is ready, or why not
    workers = [lab.popen(host, argv, env=environment(lab, rank), **pipe) for rank, host in enumerate(lab.hosts)]
    everything = [*zip(lab.hubs, hubs, strict=True), *zip(lab.hosts, workers, strict=True)]
    lock = threading.Lock()
    readers = [
        threading.Thread(target=_copy, args=(p.stdout, f"{name} | " if len(everything) > 1 else "", target, lock))
        for name, p in everything
    ]
    for reader in readers:
        reader.start()
    try:
        code = _wait(workers, hubs)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
        end([*workers, *hubs], signal.SIGINT)
    else:
        end([*workers, *hubs], signal.SIGTERM)
    for reader in readers:
        reader.join(timeout=GRACE)
    return code


def end(processes: Sequence[subprocess.Popen[Any]], first: signal.Signals, *, grace: float = GRACE) -> None:
    """End the process groups: ask with `first`, and after `grace` seconds insist."""
    for sign, patience in ((first, grace), (signal.SIGKILL, 5.0)):
        running = [p for p in processes if p.poll() is None]
        for process in running:
            os.killpg(process.pid, sign)
        until = time.monotonic() + patience
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def _wait(workers: list[subprocess.Popen[Any]], hubs: list[subprocess.Popen[Any]]) -> int:
    while True:
        codes = [p.poll() for p in workers]
        # A hub that ends while workers need it is a failure as well, whatever its own code.
        failed = [c for c in codes if c] + [p.returncode or 1 for p in hubs if p.poll() is not None]
        if failed:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if all(c == 0 for c in codes):
            return 0
        time.sleep(0.02)


def _copy(source: IO[bytes], prefix: str, target: TextIO, lock: threading.Lock) -> None:
    for line in source:
        with lock:
            target.write(prefix + line.decode(errors="replace").rstrip("\n") + "\n")
            target.flush()
