"""`dovetail.reorder()` in real processes: ranks change numbers together, and init_process_group works after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ranks

from dovetail.errors import BadInput, Mismatch
from dovetail.lab import Lab
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.probe import Effort
from dovetail.network.ranking import RankOrder

QUICK = Effort(echoes=5, bulk=1 << 14, passes=1)


def who_is_where(rank: int) -> list[int]:
    """Old ranks in the order of the new ones, as a process group sees them."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = torch.empty(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_into_tensor(found, torch.tensor([rank]))
    dist.barrier()
    dist.destroy_process_group()
    return [int(r) for r in found]


def moved(rank: int, size: int) -> tuple[list[int], str]:
    """Ranks 0 and 1 share a host, 2 and 3 have one each; the search is told what to find."""
    import dovetail

    with pytest.raises(BadInput, match="is not this host's"):
        dovetail.reorder(address="198.51.100.1")
    with pytest.raises(BadInput, match="algorithm 'star'"):
        dovetail.reorder("star")
    with pytest.raises(Mismatch, match="rank 2 calls reorder for tree"):
        dovetail.reorder("tree" if rank == 2 else "ring", effort=QUICK)

    module = sys.modules["dovetail.training.reorder"]
    # Hosts are numbered by their lowest ranks: (0 1) 2 3 become 2 3 (0 1), and those 3 2 (0 1).
    for order in ((1, 2, 0), (1, 0, 2)):
        module.best_ranking = lambda matrix, order=order, **_: told(matrix, order)  # type: ignore[attr-defined]
        found = dovetail.reorder(address=f"127.0.0.{max(1, rank)}", effort=QUICK)
        assert found.gain == 2.0
    assert int(os.environ["LOCAL_RANK"]) == rank
    return who_is_where(rank), os.environ["MASTER_ADDR"]


def told(matrix: ProbeMatrix, order: tuple[int, ...]) -> RankOrder:
    hosts = tuple(matrix.hosts[node] for node in order)
    return RankOrder(algorithm="ring", hosts=hosts, order=order, cost=1.0, given=2.0, random=3.0)


def test_hosts_move_as_a_whole_and_the_master_follows_rank_0() -> None:
    with ranks(4, moved) as group:
        assert group.results(90) == [([3, 2, 0, 1], "127.0.0.3")] * 4
        assert "2.00x faster than the given order, 3.00x than a random one" in group.output(3)
        assert "faster" not in group.output(0)


SCRIPT = """
import os, sys
sys.path.insert(0, os.environ["TESTS"])
import dovetail
from dovetail.network.probe import Effort
from test_reorder import who_is_where
rank = int(os.environ["RANK"])
assert dovetail.reorder("hd", effort=Effort(echoes=5, bulk=0, passes=1)).gain == 1.0  # one host: nothing to move
assert who_is_where(rank) == [0, 1]
"""


def test_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    env = {**os.environ, "TESTS": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]


def probed(rank: int, size: int) -> tuple[list[int], float]:
    import dovetail

    found = dovetail.reorder(size=8 << 20, effort=Effort(echoes=10, bulk=1 << 19, passes=2))
    return who_is_where(rank), found.gain_over_random


@pytest.mark.lab
def test_racks_become_neighbours_in_the_ring() -> None:
    with Lab(4, 12.5e6, racks=2, uplink=2.5e6, shuffle_seed=1) as lab:
        racks = [node.rack for node in lab.layout.hosts]
        assert racks[0] == racks[2], "the given order alternates, so that there is something to gain"
        with ranks(4, probed, hosts=lab) as group:
            results = group.results(90)
    order, gain = results[0]
    assert all(result[0] == order for result in results)
    homes = [racks[rank] for rank in order]
    assert sum(a != b for a, b in zip(homes, homes[1:] + homes[:1], strict=True)) == 2
    assert gain > 1.1
