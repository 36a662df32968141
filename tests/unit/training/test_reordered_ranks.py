"""A process's place in its job, and what changes when the ranks are renumbered."""

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


def test_a_place_is_the_launchers_word() -> None:
    found = launched(TORCHRUN)
    assert (found.rank, found.world, found.local_rank, found.agent_store) == (3, 8, 1, True)
    del (without := dict(TORCHRUN))["TORCHELASTIC_USE_AGENT_STORE"]
    assert not launched(without).agent_store
    with pytest.raises(BadInput, match="no launcher has set RANK"):
        launched(MASTER)


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
    assert changed == {"RANK": "5", "ROLE_RANK": "5", **MASTER}
    of_two_roles = {**env, "ROLE_WORLD_SIZE": "4"}
    assert "ROLE_RANK" not in renumbered(of_two_roles, replace(launched(env), rank=5))
