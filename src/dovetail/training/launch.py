"""A rank's place before there is a process group, and the store that the ranks meet at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore

from dovetail.engine.launch import ALONE, find
from dovetail.errors import BadInput, Unreachable

MEETING = timedelta(seconds=120)  # how long ranks wait for each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank, and where the ranks meet."""

    rank: int
    world: int
    local_rank: int
    master: str
    port: int
    agent_store: bool = False  # the launcher serves the store at master:port; otherwise rank 0 does
    attempt: str = "0"  # torchrun restarts jobs; the store may be the old one


def launched(env: Mapping[str, str]) -> Place:
    """This process's place, by its launcher's variables."""
    found = find(env)
    if found.launcher == ALONE:
        raise BadInput("no launcher has set RANK; start the script with torchrun, mpirun or srun")
    return Place(
        rank=found.rank,
        world=found.world,
        local_rank=found.local_rank,
        master=found.master,
        port=found.port,
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=env.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def open_store(place: Place, *, serve: bool, prefix: str) -> tuple[PrefixStore, TCPStore]:
    """The ranks' store under a prefix of its own, and the connection that must live as long as it is used.

    A server that this process starts is the one that a later init_process_group in it will use.
    """
    try:
        store = TCPStore(place.master, place.port, None, serve, MEETING, multi_tenant=True)
    except RuntimeError as error:  # torch's store errors are RuntimeErrors
        raise Unreachable(f"no ranks met at {place.master}:{place.port}: {str(error).splitlines()[0]}") from None
    return PrefixStore(prefix, store), store
