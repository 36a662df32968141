"""A process's place in its job, from each launcher's variables, and its place after the ranks are renumbered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from dovetail.errors import BadInput
from dovetail.training.launch import launched
from dovetail.training.reorder import by_host, new_ranks, renumbered

MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {**MASTER, "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}


@dataclass
class Member:
    host: str
    local_rank: int
    address: str = "10.0.0.1"


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "7"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
    ],
)
def test_every_launcher_is_understood(env: dict[str, str]) -> None:
    found = launched({**MASTER, **env})
    assert (found.rank, found.world, found.local_rank, found.agent_store) == (3, 8, 1, False)
    assert launched(TORCHRUN).agent_store


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (MASTER, "no launcher has set RANK"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "MASTER_ADDR"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8"),
        ({**TORCHRUN, "WORLD_SIZE": "many"}, "'many'"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, "port 0"),
    ],
)
def test_what_is_missing_is_named(env: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        launched(env)


def test_ranks_of_a_host_stay_together_in_local_order() -> None:
    # As `mpirun --map-by node` deals them: a, b, a, b, and c has one.
    members = [Member("a", 0), Member("b", 0), Member("a", 1), Member("b", 1), Member("c", 0)]
    hosts = by_host(members)
    assert hosts == [[0, 2], [1, 3], [4]]
    assert new_ranks(members, hosts, [2, 1, 0]) == [3, 1, 4, 2, 0]


def test_hosts_that_share_a_name_are_told_apart_by_address() -> None:
    members = [Member("box", 0, "10.0.0.1"), Member("box", 0, "10.0.0.2")]
    assert by_host(members) == [[0], [1]]


def test_only_numbers_change_and_the_place_stays() -> None:
    env = {**TORCHRUN, "GROUP_RANK": "1", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "8"}
    changed = renumbered(env, replace(launched(env), rank=5))
    assert changed == {"RANK": "5", "ROLE_RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", **MASTER}
    of_two_roles = {**env, "ROLE_WORLD_SIZE": "4"}
    assert "ROLE_RANK" not in renumbered(of_two_roles, replace(launched(env), rank=5))
