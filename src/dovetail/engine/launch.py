"""Who started this process, and as which rank: torchrun, Open MPI, MPICH's kin or Slurm, in torchrun's words."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass

from dovetail.errors import BadInput

TORCHRUN, OPEN_MPI, MPICH, SLURM, ALONE = "torchrun", "Open MPI", "MPICH", "Slurm", "nobody"
DEFAULT_PORT = 29500  # torch's own
PORTS = range(20000, 30000)  # below those that kernels give to outgoing connections

# Rank, world, local rank, local world. srun sets the PMI ones as well, and mpiexec inside an allocation starts its own
# helpers by srun: what is nearest to the process comes first.
_VARIABLES = {
    TORCHRUN: ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    OPEN_MPI: (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    MPICH: ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    SLURM: ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}  # fmt: skip
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")  # equal on all ranks, different from job to job
_HOSTS = re.compile(r"([^,\[]+)(?:\[([^\]]*)\])?([^,\[]*)(?:,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process's place in its job, and where rank 0 is met."""

    launcher: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    master: str
    port: int


def environment(variables: MutableMapping[str, str] | None = None) -> Launch:
    """Find who started this process and set what `init_process_group` reads; what is set already stays.

    Call it before `init_process_group`; under torchrun it changes nothing.
    """
    given = os.environ if variables is None else variables
    found = find(given)
    words = (found.rank, found.world, found.local_rank, found.local_world)
    for name, value in zip(_VARIABLES[TORCHRUN], words, strict=True):
        given.setdefault(name, str(value))
    given.setdefault("MASTER_ADDR", found.master)
    given.setdefault("MASTER_PORT", str(found.port))
    return found


def find(variables: Mapping[str, str]) -> Launch:
    """What the variables say, nothing changed; BadInput where they do not say enough."""
    launcher = next((name for name, names in _VARIABLES.items() if all(n in variables for n in names[:2])), ALONE)
    if launcher == ALONE:
        rank, world, local_rank, local_world = 0, 1, 0, 1
    else:
        rank, world = (_number(variables, name) for name in _VARIABLES[launcher][:2])
        local_rank, local_world = _locals(launcher, variables)
    if not 0 <= rank < world:
        raise BadInput(f"{launcher} says rank {rank} of {world}; ranks count from 0 to {world - 1}")
    local_world = local_world or (1 if world == 1 else 0)
    return Launch(
        launcher=launcher,
        rank=rank,
        world=world,
        local_rank=local_rank,
        local_world=local_world or 1,
        master=variables.get("MASTER_ADDR") or _master(launcher, variables, alone=local_world == world),
        port=_number(variables, "MASTER_PORT") if variables.get("MASTER_PORT") else _port(variables),
    )


def _locals(launcher: str, variables: Mapping[str, str]) -> tuple[int, int]:
    """Local rank and local world; 0 = the launcher does not say how many are on this machine."""
    rank, world = _VARIABLES[launcher][2:]
    count = variables.get(world, "")
    if launcher == SLURM and count:  # "2(x3),1": tasks of each node
        each = [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", count) for _ in range(int(times or 1))]
        node = _number(variables, "SLURM_NODEID") if "SLURM_NODEID" in variables else 0
        count = str(each[node]) if node < len(each) else ""
    local = _number(variables, rank) if variables.get(rank) else 0
    return local, int(count) if count.isdigit() else 0


def _master(launcher: str, variables: Mapping[str, str], *, alone: bool) -> str:
    if alone:
        return "127.0.0.1"
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
    if nodes:
        return next(hosts(nodes))
    raise BadInput(
        f"{launcher} does not say where rank 0 is; name its host, as in `mpirun -x MASTER_ADDR=HOST ...` or "
        "`mpiexec -genv MASTER_ADDR HOST ...`"
    )


def hosts(nodes: str) -> Iterator[str]:
    """Names from a list as Slurm writes it: `n[08-10,12],gpu1`."""
    for head, ranges, tail in _HOSTS.findall(nodes):
        for part in ranges.split(",") if ranges else [""]:
            low, _, high = part.partition("-")
            if not ranges:
                yield f"{head}{tail}"
            else:
                for number in range(int(low), int(high or low) + 1):
                    yield f"{head}{number:0{len(low)}d}{tail}"


def _port(variables: Mapping[str, str]) -> int:
    """A port of the job's own, so that two jobs on a machine do not meet."""
    slurm = f"{variables.get('SLURM_JOB_ID', '')}.{variables.get('SLURM_STEP_ID', '')}".strip(".")
    job = next((variables[name] for name in _JOBS if variables.get(name)), slurm)
    return PORTS[zlib.crc32(job.encode()) % len(PORTS)] if job else DEFAULT_PORT


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables[name]
    if not text.isdigit():
        raise BadInput(f"{name} is {text!r}; it must be a whole number")
    return int(text)
