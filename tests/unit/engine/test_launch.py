"""Ranks as each launcher tells them, in the words that torch reads."""

from __future__ import annotations

import pytest

from dovetail.engine.launch import PORTS, environment, find, hosts
from dovetail.errors import BadInput

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_STEP_NODELIST": "rack[07-08]",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}


def test_torchruns_words_are_left_alone() -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1", "OMPI_COMM_WORLD_RANK": "7"}
    before = dict(given)
    found = environment(given)
    assert (found.launcher, found.rank, found.master, found.port) == ("torchrun", 1, "a", 1)
    assert {name: given[name] for name in before} == before


def test_open_mpi_on_several_machines_needs_the_first_ones_name() -> None:
    with pytest.raises(BadInput, match="mpirun -x MASTER_ADDR=HOST"):
        environment(dict(OPEN_MPI))
    given = {**OPEN_MPI, "MASTER_ADDR": "head"}
    assert environment(given).launcher == "Open MPI"
    assert [given[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["3", "4", "1", "2"]


def test_on_one_machine_it_does_not() -> None:
    assert find({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).master == "127.0.0.1"
    assert find({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}).local_rank == 1


def test_slurm_names_its_first_node_and_a_port_of_the_job() -> None:
    found = find(SLURM)
    assert (found.launcher, found.rank, found.world, found.local_world, found.master) == ("Slurm", 2, 3, 1, "rack07")
    assert found.port in PORTS
    assert found.port == find({**SLURM, "SLURM_PROCID": "0"}).port
    assert found.port != find({**SLURM, "SLURM_JOB_ID": "4712"}).port
    assert found.port != find({**SLURM, "SLURM_STEP_ID": "1"}).port


def test_mpi_inside_an_allocation_counts_its_own_ranks() -> None:
    found = find({**SLURM, **OPEN_MPI, "PMIX_NAMESPACE": "prterun-1"})
    assert (found.launcher, found.rank, found.master) == ("Open MPI", 3, "rack07")


def test_a_batch_script_without_srun_is_a_world_of_one() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "rack[07-08]", "SLURM_JOB_ID": "4711"}
    found = find(batch)
    assert (found.launcher, found.rank, found.world, found.master) == ("nobody", 0, 1, "127.0.0.1")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("one", ["one"]),
        ("n[08-10,12],gpu1", ["n08", "n09", "n10", "n12", "gpu1"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert list(hosts(text)) == names


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({"SLURM_PROCID": "3"}, "rank 3 of 3"),
        ({"MASTER_PORT": "-"}, "MASTER_PORT"),
    ],
)
def test_nonsense_is_named(changed: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        find({**SLURM, **changed})
