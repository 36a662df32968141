"""Jobs as clusters start them: two torchrun agents on two lab hosts, and ranks of mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import free_port

from dovetail.lab import Lab

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "any_launcher.py")
TIMEOUT = 120


def started_by(output: str) -> str:
    line = next((line for line in output.splitlines() if line.startswith("started by ")), "")
    return line.removeprefix("started by ").rpartition(", loss")[0]


def bare() -> dict[str, str]:
    """Our own surroundings without any launcher's words."""
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith(("SLURM", "OMPI", "PMI"))}
    return {**kept, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@pytest.mark.lab
def test_two_torchrun_agents_meet_across_hosts() -> None:
    with Lab(2, 0.0) as lab:
        agents = [
            lab.popen(
                host,
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
                    *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.address(0)}:29400", "--rdzv-id", "test"),
                    # The lab's hosts share a machine's name, by which agents would find out where the meeting is.
                    *("--rdzv-conf", f"is_host={int(host == 0)}", "--local-addr", lab.address(host), EXAMPLE),
                ],
                env={**bare(), "GLOO_SOCKET_IFNAME": lab.interface},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for host in range(2)
        ]
        said = [agent.communicate(timeout=TIMEOUT)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "torchrun, 2 ranks" in {started_by(text) for text in said}, said


def test_mpiruns_ranks_find_each_other() -> None:
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    mpirun = shutil.which("mpirun", path=beside)
    assert mpirun, "mpirun comes with the development requirements (package openmpi)"
    argv = [mpirun, "-n", "2", "--oversubscribe", sys.executable, EXAMPLE]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(argv, env={**bare(), **root}, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert started_by(done.stdout) in ("Open MPI, 2 ranks", "MPICH, 2 ranks")
