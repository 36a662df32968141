"""`dovetail.reorder()`: number the ranks of a job anew, so that its collectives use the fast links.

A process stays where it is and keeps its devices; only its number changes. Ranks of one host stay next to each other
in the order of LOCAL_RANK, since much code takes rank // LOCAL_WORLD_SIZE for the host.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from dovetail.engine.launch import environment
from dovetail.errors import BadInput, DovetailError, Mismatch, Misuse, Unreachable
from dovetail.network.collective import DEFAULT_SIZE, algorithm_name
from dovetail.network.measure import route_address
from dovetail.network.probe import Effort, passes_for, probe_all, schedule
from dovetail.network.ranking import RankOrder, best_ranking
from dovetail.training.launch import MEETING, Place, launched, open_store

_calls = itertools.count()  # of this process; all ranks make theirs in the same order
_kept: list[Any] = []  # stores that init_process_group will find; they live as long as the process


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """What a rank tells the others about itself."""

    host: str
    address: str
    local_rank: int
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What rank 0 decided, or why it could not."""

    found: RankOrder | None = None
    trouble: str = ""


def reorder(
    algorithm: str = "ring",
    *,
    size: float = DEFAULT_SIZE,
    base: int = 4,
    time_limit: float = 10.0,
    address: str | None = None,
    effort: Effort | None = None,
) -> RankOrder:
    """Probe the hosts, search the best order for the collective, and set RANK (and what follows from it) in os.environ.

    All ranks call it, before init_process_group; `address` is where others reach this host, if not on its route to
    MASTER_ADDR. Gives the order of hosts and its predicted gain, which the new rank 0 prints.
    """
    if dist.is_initialized():
        raise Misuse("the ranks are numbered already; call dovetail.reorder() before init_process_group")
    name = algorithm_name(algorithm)
    if not time_limit > 0:
        raise BadInput(f"time_limit is {time_limit}; give seconds above 0")
    launch = launched(os.environ)
    environment()  # under mpirun and Slurm, torch's names for what is known already
    me = _Member(
        host=socket.gethostname(),
        address=_checked(address) if address else route_address(launch.master, launch.port),
        local_rank=launch.local_rank,
        settings=f"{name}, {size:g} bytes, base {base}, {effort or 'the usual effort'}",
    )
    serve = launch.rank == 0 and not launch.agent_store
    store, connection = open_store(launch, serve=serve, prefix=f"dovetail/reorder/{launch.attempt}/{next(_calls)}")
    if serve:
        _kept.append(connection)
    try:
        members = _introduce(store, launch, me)
        hosts = by_host(members)
        effort = effort or Effort(passes=passes_for(len(hosts)))
        store.set_timeout(MEETING + timedelta(seconds=time_limit + len(schedule(len(hosts), effort.passes))))
        found = _agree(store, launch, members, hosts, effort, (name, size, base, time_limit))
        ranks = new_ranks(members, hosts, found.order)
        place = replace(launch, rank=ranks[launch.rank])
        if not launch.agent_store and ranks[0] != 0:
            place = _new_master(store, place, me)
    except RuntimeError as error:  # torch's store errors are RuntimeErrors
        if isinstance(error, DovetailError):
            raise
        raise Unreachable(f"lost the other ranks at {launch.master}: {str(error).splitlines()[0]}") from None
    os.environ.update(renumbered(os.environ, place))
    if place.rank == 0:
        print(f"dovetail: {found}", file=sys.stderr, flush=True)
    return found


def _checked(address: str) -> str:
    try:
        socket.create_server((address, 0)).close()
    except OSError as error:
        raise BadInput(f"address {address!r} is not this host's: {error.strerror or error}") from None
    return address


def by_host(members: Sequence[Any]) -> list[list[int]]:
    """The ranks on each host by LOCAL_RANK, hosts in the order of their lowest ranks."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, member in enumerate(members):
        found.setdefault((member.host, member.address), []).append(rank)
    return [sorted(ranks, key=lambda r: (members[r].local_rank, r)) for ranks in found.values()]


def new_ranks(members: Sequence[Any], hosts: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """The new rank of each old one when hosts stand in this order."""
    ranks = [0] * len(members)
    for new, old in enumerate(rank for host in order for rank in hosts[host]):
        ranks[old] = new
    return ranks


def renumbered(env: Mapping[str, str], place: Place) -> dict[str, str]:
    """The variables that change: who stays on its host keeps LOCAL_RANK, GROUP_RANK and what else names its place."""
    changed = {
        "RANK": str(place.rank),
        "MASTER_ADDR": place.master,
        "MASTER_PORT": str(place.port),
    }
    if "ROLE_RANK" in env and env.get("ROLE_WORLD_SIZE") == str(place.world):  # one role: numbered like the ranks
        changed["ROLE_RANK"] = str(place.rank)
    return changed


def _introduce(store: Any, launch: Place, me: _Member) -> list[_Member]:
    store.set(f"rank/{launch.rank}", msgspec.json.encode(me).decode())
    members = [msgspec.json.decode(store.get(f"rank/{r}"), type=_Member) for r in range(launch.world)]
    _all_have_read(store, launch, "members")
    for rank, member in enumerate(members):
        if member.settings != members[0].settings:
            raise Mismatch(
                f"rank {rank} calls reorder for {member.settings}, rank 0 for {members[0].settings}; call it alike"
            )
    return members


def _agree(
    store: Any,
    launch: Place,
    members: Sequence[_Member],
    hosts: Sequence[Sequence[int]],
    effort: Effort,
    wanted: tuple[str, float, int, float],
) -> RankOrder:
    """The first rank of every host probes; rank 0 searches, and all take its word."""
    name, size, base, time_limit = wanted
    leaders = [min(ranks) for ranks in hosts]
    verdict = _Verdict()
    if launch.rank in leaders:
        mine = leaders.index(launch.rank)
        named = _names(members, leaders)
        try:
            matrix = probe_all(store, rank=mine, hosts=named, address=members[launch.rank].address, effort=effort)
            if launch.rank == 0:
                found = best_ranking(matrix, algorithm=name, size=size, base=base, time_limit=time_limit)
                verdict = _Verdict(found=found)
        except DovetailError as error:
            verdict = _Verdict(trouble=str(error))
    if launch.rank == 0:
        store.set("verdict", msgspec.json.encode(verdict).decode())
    verdict = msgspec.json.decode(store.get("verdict"), type=_Verdict)
    _all_have_read(store, launch, "verdict")
    if verdict.found is None:
        raise Unreachable(verdict.trouble)
    return verdict.found


def _all_have_read(store: Any, launch: Place, what: str) -> None:
    """Rank 0, whose end may be the store's, goes on when all others have what they need to end by themselves."""
    if launch.rank:
        store.set(f"{what}/{launch.rank}", "")
    else:
        for other in range(1, launch.world):
            store.get(f"{what}/{other}")


def _names(members: Sequence[_Member], leaders: Sequence[int]) -> list[str]:
    """Host names, or addresses where names do not tell hosts apart."""
    names = [members[r].host for r in leaders]
    return names if len(set(names)) == len(names) else [members[r].address for r in leaders]


def _new_master(store: Any, place: Place, me: _Member) -> Place:
    """Rank 0 serves the store, so MASTER_ADDR must follow it; its server runs from now on, on the old port if free."""
    if place.rank == 0:
        for port in (place.port, 0):
            try:
                server = TCPStore(me.address, port, None, True, MEETING, multi_tenant=True)
            except RuntimeError:  # taken
                continue
            _kept.append(server)
            store.set("master", f"{me.address} {server.port}")
            break
    address, port_text = store.get("master").decode().split()
    return replace(place, master=address, port=int(port_text))
