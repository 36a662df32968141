"""OpenMPI's processes on the lab's hosts: `mpirun` starts them, and rank 0 speaks for all."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dovetail.bench.crew import Crew
from dovetail.bench.orders import MPI, MPI_RING
from dovetail.lab import Hosts, Loopback

RING = "4"  # Open MPI's number for it


def mpi_missing() -> str:
    """What keeps `mpi` from running here, or nothing."""
    if shutil.which("mpirun") is None:
        return "mpirun is not installed (Debian: apt-get install openmpi-bin)"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install mpi4py)"
    return ""


class MpiCrew(Crew):
    """One `mpirun` on the first host, whose rank 0 takes the orders and gives one reply for all ranks.

    The algorithm is MPI's own choice, or its ring.
    """

    def __init__(self, lab: Hosts, *, workers: int, ring: bool) -> None:
        self.name, self.workers = MPI_RING if ring else MPI, workers
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-bench-")
        agent = Path(self._folder.name, "agent")
        agent.write_text(_agent(lab, workers))
        agent.chmod(0o755)
        hosts = ",".join(f"{lab.address(rank)}:1" for rank in range(workers))
        options = {
            "plm_rsh_agent": str(agent),
            "plm_rsh_no_tree_spawn": "1",
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": lab.interface,
            "oob_tcp_if_include": lab.interface,
        }
        if ring:
            options |= {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": RING}
        argv = ["mpirun", "--allow-run-as-root", "-n", str(workers), "--host", hosts, "--bind-to", "none"]
        for name, value in options.items():
            argv += ["--mca", name, value]
        pipe = subprocess.PIPE
        with self._log(0).open("wb") as log:
            line = shlex.join([*argv, sys.executable, "-m", "dovetail.bench.mpi_worker"])
            self._processes = [lab.popen(0, [*_shell(lab, 0), line], stdin=pipe, stdout=pipe, stderr=log)]


def _shell(lab: Hosts, rank: int) -> list[str]:
    """A command for the host that takes a shell line, and runs it under a host name of its own.

    All hosts of a lab bear this machine's name, by which MPI would take them for one and share memory.
    """
    if isinstance(lab, Loopback):
        return ["sh", "-c"]
    return ["unshare", "--uts", "sh", "-c", f'hostname {lab.node(rank).name} && eval "$0"']


def _agent(lab: Hosts, workers: int) -> str:
    """A script in the place of ssh: called with an address and a command, it runs the command on that host."""
    lines = ["#!/bin/sh", "host=$1", "shift", 'case "$host" in']
    for rank in range(workers):
        lines.append(f'{lab.address(rank)}) exec {shlex.join(lab.command(rank, _shell(lab, rank)))} "$*" ;;')
    return "\n".join([*lines, "esac", 'echo "no such host: $host" >&2', "exit 1"]) + "\n"
