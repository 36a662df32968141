"""What the launcher of a job (torchrun, mpirun, srun) says about this process, and the store its ranks meet at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore

from dovetail.errors import BadInput, Unreachable

# rank, world size, rank on this host: the first launcher whose rank is there counts, torch's own names before all.
_NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
MEETING = timedelta(seconds=120)  # how long ranks wait for each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """This process's place in its job."""

    rank: int
    world: int
    local_rank: int
    master: str
    port: int
    agent_store: bool = False  # the launcher serves the store at master:port; otherwise rank 0 does
    attempt: str = "0"  # torchrun restarts jobs; the store may be the old one


def launched(env: Mapping[str, str]) -> Launch:
    """Read the launcher's variables."""
    names = next((n for n in _NAMES if n[0] in env), None)
    if names is None:
        raise BadInput("no launcher has set RANK; start the script with torchrun, mpirun or srun")
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise BadInput("MASTER_ADDR or MASTER_PORT is not set; export the address of rank 0's host and a free port")
    rank, world, local_rank, port = (_number(env, name) for name in (*names, "MASTER_PORT"))
    if not 0 <= rank < world or not 0 < port < 1 << 16:
        raise BadInput(f"rank {rank} of {world} at port {port} is no place in a job; check {names[0]} and MASTER_PORT")
    return Launch(
        rank=rank,
        world=world,
        local_rank=local_rank,
        master=env["MASTER_ADDR"],
        port=port,
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=env.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def open_store(launch: Launch, *, serve: bool, prefix: str) -> tuple[PrefixStore, TCPStore]:
    """The ranks' store under a prefix of its own, and the connection that must live as long as it is used.

    A server that this process starts is the one that a later init_process_group in it will use.
    """
    try:
        store = TCPStore(launch.master, launch.port, None, serve, MEETING, multi_tenant=True)
    except RuntimeError as error:  # torch's store errors are RuntimeErrors
        raise Unreachable(f"no ranks met at {launch.master}:{launch.port}: {str(error).splitlines()[0]}") from None
    return PrefixStore(prefix, store), store


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env.get(name, "0"))
    except ValueError:
        raise BadInput(f"{name} is {env[name]!r}; it must be a number") from None
