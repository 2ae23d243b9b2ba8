"""The batch scripts of deploy/slurm on a Slurm of three nodes, each a host of a LAN of network namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.deploy.virtual_slurm import Slurm, why_not
from tests.imports import ROOT
from tests.lan.cluster import DIGITS
from tests.lan.lan import Lan
from zmqps.core.protocol import exits

TRAIN, HETJOB = ROOT / "deploy/slurm/train.sbatch", ROOT / "deploy/slurm/hetjob.sbatch"
#: Long enough for a machine that has other things to do.
JOB_S = 280.0
#: … which may need long to start all tasks, and to let each say a sign of life.
PATIENT = {"ZMQPS_RUN_TIMEOUT": "250", "ZMQPS_RUN_HEARTBEAT_TIMEOUT": "60"}

pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if reason := why_not():
        pytest.skip(f"no Slurm: {reason}")
    with Lan(3, ssh=False, shared_home=True, seconds=1800) as lan:
        yield Slurm(lan)


def accuracies(log: str) -> dict[str, float]:
    """Return the accuracy that each worker has found, by its name."""
    return {name: float(found) for name, found in re.findall(r"(worker-\S+) \|.*test accuracy (\d\.\d+)", log)}


def test_one_allocation_trains_digits(slurm: Slurm) -> None:
    job = slurm.submit(TRAIN, "python", DIGITS, "--passes", 10, **PATIENT)
    assert slurm.ended(job, JOB_S) == ("COMPLETED", "0:0"), slurm.log(job)
    found = accuracies(slurm.log(job))
    assert set(found) == {"worker-0@host-a", "worker-1@host-b", "worker-2@host-c"}
    assert min(found.values()) >= 0.9, found
    assert slurm.left() == []
    assert (slurm.home / "keys").stat().st_mode & 0o777 == 0o700
    assert (slurm.home / f"runs/slurm-{job}/logs/server-1@host-b.log").exists()


def test_a_heterogeneous_job_has_servers_on_one_part_and_workers_on_the_other(slurm: Slurm) -> None:
    job = slurm.submit(HETJOB, "python", DIGITS, "--passes", 10, **PATIENT)
    assert slurm.ended(job, JOB_S) == ("COMPLETED", "0:0"), slurm.log(job)
    log = slurm.log(job)
    assert set(accuracies(log)) == {"worker-0@host-a", "worker-1@host-b"}
    assert set(re.findall(r"^((?:server|coordinator)\S*) ", log, re.MULTILINE)) == {
        "coordinator@host-c", "server-0@host-c", "server-1@host-c",
    }  # fmt: skip
    assert slurm.left() == []


def test_a_worker_that_fails_fails_the_job_with_its_code(slurm: Slurm) -> None:
    script = "if [ $ZMQPS_WORKER_INDEX = 2 ]; then echo out of luck; exit 9; fi; exec sleep 1000"
    job = slurm.submit(TRAIN, "sh", "-c", script, **PATIENT)
    assert slurm.ended(job, JOB_S) == ("FAILED", "9:0"), slurm.log(job)
    assert "worker-2@host-c failed with exit code 9" in slurm.log(job)
    assert slurm.left() == []


def test_scancel_leaves_nothing(slurm: Slurm) -> None:
    job = slurm.submit(TRAIN, "sh", "-c", "echo at work; exec sleep 1000", **PATIENT)
    slurm.said(job, "worker-[012]@.* at work", JOB_S, times=3)
    slurm.run("scancel", job)
    assert slurm.ended(job, JOB_S)[0] == "CANCELLED"
    assert slurm.left(30.0) == []
    assert "SIGTERM: ending this task, and with it the cluster" in slurm.log(job)


def test_a_job_without_a_command_says_what_to_type(slurm: Slurm) -> None:
    job = slurm.submit(TRAIN)
    assert slurm.ended(job, JOB_S) == ("FAILED", f"{exits.USAGE}:0")
    assert slurm.log(job) == "say what the workers run: sbatch train.sbatch python train.py\n"
