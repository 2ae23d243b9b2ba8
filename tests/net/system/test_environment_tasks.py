"""Which task this is, as each scheduler says it."""

from __future__ import annotations

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.net.system.environment import FIRST_PORT, Rank, find_task, first_host, hosts

SLURM = {
    "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "3",
    "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_NODELIST": "n[1-9]",
}  # fmt: skip
#: A step over both parts of a heterogeneous job, as Slurm 22.05 says it: rank 0 is on the first node of the first part.
HET = SLURM | {
    "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n3", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "host-a", "MASTER_PORT": "29500"}


@for_each(
    "env, rank",
    [
        ({}, Rank()),
        (SLURM, Rank(rank=1, size=3, host="n1", port=FIRST_PORT + 7 * 42, source="Slurm")),
        (HET, Rank(rank=1, size=3, host="n3", port=FIRST_PORT + 7 * 42, source="Slurm")),
        (
            HET | {"SLURM_STEP_NODELIST": "n[1-2]"},  # srun --het-group=1
            Rank(rank=1, size=3, host="n1", port=FIRST_PORT + 7 * 42, source="Slurm"),
        ),
        (
            SLURM | {"SLURM_DISTRIBUTION": "arbitrary"},  # by a file of hosts that only srun has seen
            Rank(rank=1, size=3, port=FIRST_PORT + 7 * 42, source="Slurm"),
        ),
        (OPEN_MPI, Rank(rank=2, size=4, source="Open MPI")),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            Rank(rank=2, size=4, host="127.0.0.1", source="Open MPI"),
        ),
        (SLURM | OPEN_MPI, Rank(rank=2, size=4, source="Open MPI")),  # mpirun in an allocation
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, Rank(rank=0, size=2, source="PMI")),
        (TORCHRUN, Rank(rank=3, size=8, host="host-a", port=29500, source="torchrun")),
        (
            TORCHRUN | {"TORCHELASTIC_RUN_ID": "x"},  # its own store listens there
            Rank(rank=3, size=8, host="host-a", source="torchrun"),
        ),
        (
            {"JOB_COMPLETION_INDEX": "3", "JOBSET_NAME": "train", "REPLICATED_JOB_NAME": "workers"},
            Rank(rank=3, host="train-workers-0-0.train", source="Kubernetes"),
        ),
    ],
)
def test_the_scheduler_says_which_task_this_is(env: dict[str, str], rank: Rank) -> None:
    assert find_task(env) == rank


@for_each(
    "fqdn, host",
    [
        ("job-3.svc.ns.svc.cluster.local", "job-0.svc.ns.svc.cluster.local"),
        ("train-workers-0-3.train", "train-workers-0-0.train"),
        ("elsewhere.svc", ""),
        ("", ""),
    ],
)
def test_a_pod_knows_the_name_of_the_first_one_by_its_own(fqdn: str, host: str) -> None:
    assert find_task({"JOB_COMPLETION_INDEX": "3"}, fqdn) == Rank(rank=3, host=host, source="Kubernetes")


@for_each(
    "env, says",
    [
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}, "start it with srun"),
        (SLURM | {"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x', which is not a number; give --rank"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is ''"),
    ],
)
def test_an_environment_that_makes_no_task_is_refused(env: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_task(env)
    assert says in str(caught.value)


@for_each(
    "nodes, first",
    [("n1", "n1"), ("n[1-3,5],m2", "n1"), ("n[01,03-04]", "n01"), ("a,b", "a"), ("r[1-2]n[3-4],x", "r1n3"), ("", "")],
)
def test_the_first_host_of_a_list_of_slurm(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@for_each(
    "nodes, all_of_them",
    [
        ("n1", "n1"), ("n[08-10,7],m2", "n08 n09 n10 n7 m2"), ("a-1,a-2", "a-1 a-2"),
        ("r[1-2]n[3-4]x", "r1n3x r1n4x r2n3x r2n4x"), ("", ""),
    ],
)  # fmt: skip
def test_the_hosts_of_a_list_of_slurm(nodes: str, all_of_them: str) -> None:
    assert list(hosts(nodes)) == all_of_them.split()
