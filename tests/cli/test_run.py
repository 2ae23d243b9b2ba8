"""``zmqps run``: many equal tasks, which are one cluster until the first fails or all have ended."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.pace import allow
from tests.ports import free_port
from tests.tables import for_each
from zmqps import keys
from zmqps.cli import run as run_module
from zmqps.cli.main import run
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError, DeadlineError
from zmqps.settings.cluster import RunSettings

#: What tells a task of a scheduler; a test must not find that of whoever runs it.
SCHEDULERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "SLURM_PROCID")
AT_WORK = "echo worker $ZMQPS_WORKER_INDEX at work; exec sleep 1000"
#: Pushes until the cluster ends; worker 2 fails as soon as there is a file.
TRAINER = """
import os, sys, time
from pathlib import Path
import numpy as np
import zmqps

with zmqps.connect(os.environ["ZMQPS_COORDINATOR"]) as worker:
    worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(0.1), mode="async")
    print("trains", flush=True)
    while not (os.environ["ZMQPS_WORKER_INDEX"] == "2" and Path("stop").exists()):
        worker.push({"w": np.ones(4, np.float32)}, timeout=30)
        time.sleep(0.02)  # which is the computing of a gradient here
sys.exit(9)
"""


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SCHEDULERS:
        monkeypatch.delenv(name, raising=False)


@for_each(
    "arguments, says",
    [
        (("--size", "2", "--address", "127.0.0.1:1", "--", "true"), "nothing says --rank"),
        (("--rank", "0", "--size", "2", "--", "true"), "does not say where rank 0 is: give --address"),
        (("--rank", "2", "--size", "2", "--address", "127.0.0.1:1", "--", "true"), "there is no rank 2 of 2"),
        (
            (
                "--rank",
                "0",
                "--size",
                "2",
                "--address",
                "127.0.0.1:1",
                "--servers-apart",
                "--server-tasks",
                "1",
                "true",
            ),
            "give one",
        ),
        (("--rank", "0", "--size", "2", "--address", "a:b:c", "--", "true"), "write HOST:PORT"),
        (("--rank", "0", "--size", "2", "--address", "127.0.0.1:0", "--", "true"), "write HOST:PORT"),
        (("--rank", "0", "--size", "1", "--address", "no.such.host.invalid:1", "--", "true"), "has no address here"),
        (
            (
                "--rank",
                "0",
            ),
            "say what the workers run",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_started(capsys, arguments, says) -> None:
    assert run(["run", *arguments]) == exits.USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "threads"),
    [
        ({"SLURM_CPUS_PER_TASK": "6"}, 3),  # although another task has the other cores of the host
        ({"SLURM_CPUS_PER_TASK": "1"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_GTIDS": "2"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_GTIDS": "0,1"}, 2),
    ],
)
def test_the_workers_of_a_task_of_slurm_share_its_cores(monkeypatch, tmp_path, env, threads) -> None:
    class Seen(Exception):
        pass

    def look(config, terminal):
        raise Seen(config.env["OMP_NUM_THREADS"])

    step = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "localhost"}
    for name, value in (step | env).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("zmqps.cli.running.task.Task", look)
    monkeypatch.setattr("zmqps.launch.agent.num_cores", lambda: 8)
    with pytest.raises(Seen, match=str(threads)):
        run(["run", "--insecure", "--directory", str(tmp_path), "--workers-each", "2", "--", "true"])


def test_rank_and_size_may_be_said_where_the_scheduler_says_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    config = run_module._config(RunSettings(rank=0, size=2), ("true",))
    assert (config.rank, config.size) == (0, 2)
    assert config.cluster.address == config.address
    assert config.address.startswith("tcp://127.0.0.1:")


def test_a_pod_waits_until_the_name_of_the_first_one_resolves(monkeypatch) -> None:
    asked = []

    def not_yet(name: str) -> str:
        asked.append(name)
        if len(asked) < 3:
            raise ConfigurationError(f"{name} has no address here")
        return "10.0.0.7"

    monkeypatch.setattr("zmqps.launch.reach.resolved", not_yet)
    monkeypatch.setattr("zmqps.cli.run.ASK_S", 0.0)
    assert run_module._pod_address("train-0.train", timeout=allow(10.0)) == "10.0.0.7"
    assert asked == ["train-0.train"] * 3


def test_it_does_not_wait_for_ever(monkeypatch, capsys) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    where = ("--size", "2", "--address", "train-0.no-such.invalid", "--timeout", "0")
    assert run(["run", *where, "--", "true"]) == exits.USAGE
    assert "'train-0.no-such.invalid' has no address here" in capsys.readouterr().err


@pytest.fixture
def tasks(start) -> Callable[..., list]:
    """Start all tasks of a cluster, each in a process of its own as on a host of its own."""

    def begin(size: int, *arguments: str) -> list:
        told = ("run", "--kernels", "numpy", "--address", f"127.0.0.1:{free_port()}", "--size", str(size))
        return [start(*told, "--rank", str(rank), *arguments) for rank in range(size)]

    return begin


@pytest.mark.processes
def test_a_worker_that_fails_is_started_again_in_its_task(tasks) -> None:
    script = "echo worker $ZMQPS_WORKER_INDEX, life $ZMQPS_WORKER_RESTART; [ $ZMQPS_WORKER_RESTART = 1 ]"
    found = tasks(2, "--restart-workers", "1", "--", "sh", "-c", script)
    assert [task.exit_code() for task in found] == [exits.OK] * 2, [task.output for task in found]
    for index, task in enumerate(found):
        assert "it starts again in 0.5 s: restart 1 of 1" in task.output
        lives = [f"worker {index}, life {number}" for number in (0, 1)]
        assert [life in task.output for life in lives] == [True, True]


@pytest.mark.processes
def test_all_tasks_end_when_the_last_worker_has_ended(tasks) -> None:
    script = "echo worker $ZMQPS_WORKER_INDEX, $OMP_NUM_THREADS; sleep $ZMQPS_WORKER_INDEX"
    found = tasks(3, "--servers", "2", "--", "sh", "-c", script)
    assert [task.exit_code() for task in found] == [exits.OK] * 3, [task.output for task in found]
    for index, task in enumerate(found):
        assert re.search(rf"worker-{index}@\S+ +\| .* worker {index}, \d+\n", task.output)
    assert "the workers of all 3 tasks have ended well" in found[0].output
    assert ["server-1" in task.output for task in found] == [True, True, False]  # the coordinator names it, too


@pytest.mark.processes
@pytest.mark.parametrize("number", [0, signal.SIGKILL], ids=["ends", "KILL"])
def test_a_worker_holds_the_key_of_a_worker_only_which_goes_with_the_task(tasks, tmp_path, number) -> None:
    keys.create(tmp_path / "keys")
    script = f"echo of $ZMQPS_KEYS: $(ls $ZMQPS_KEYS); {'exec sleep 1000' if number else ''}"
    (task,) = tasks(1, "--servers", "1", "--keys", "keys", "--", "sh", "-c", script)
    said = task.wait_for(r"of (/\S+): (.+)\n")
    folder = Path(said[1])
    assert said[2] == "cluster.pub worker.key"
    if number:
        its = psutil.Process(task.pid).children(recursive=True)
        task.popen.send_signal(number)
        assert not psutil.wait_procs(its, 30)[1]
    assert task.exit_code() == -number
    assert not folder.parent.exists()


@pytest.mark.processes
def test_without_a_key_for_workers_nothing_is_started(tasks, tmp_path) -> None:
    keys.create(tmp_path / "keys")
    (tmp_path / "keys" / "worker.key").unlink()
    (task,) = tasks(1, "--servers", "1", "--keys", "keys", "--", "true")
    assert task.exit_code() == exits.USAGE
    assert "cannot read keys/worker.key, which is handed out (No such file or directory)" in task.output
    assert "Traceback" not in task.output


#: Trains once, and has a file in the place of the directory of checkpoints before the cluster ends.
UNSAVED = """
import shutil, numpy as np, zmqps
worker = zmqps.connect()
worker.init({"w": np.zeros(8, np.float32)}, optimizer=zmqps.optim.sgd(0.1), mode="async")
worker.push({"w": np.ones(8, np.float32)})
shutil.rmtree("ckpt", ignore_errors=True)
open("ckpt", "w").close()
worker.finish()
"""


@pytest.mark.processes
def test_that_what_was_trained_could_not_be_saved_is_an_exit_code_of_the_first_task(tasks) -> None:
    found = tasks(2, "--checkpoint", "ckpt", "--", sys.executable, "-c", UNSAVED)
    assert [task.exit_code() for task in found] == [exits.NOT_SAVED, exits.OK], [task.output for task in found]


@pytest.mark.processes
def test_a_worker_that_fails_ends_all_tasks_with_a_code(tasks, tmp_path) -> None:
    bad = f"while [ ! -e {tmp_path}/fail ]; do sleep 0.05; done; echo out of luck; exit 9"
    found = tasks(3, "--servers", "1", "--", "sh", "-c", f"[ $ZMQPS_WORKER_INDEX = 2 ] && {{ {bad}; }}; {AT_WORK}")
    for index in (0, 1):  # a task that has not come yet finds no cluster any more, and waits for one
        found[index].wait_for(f"worker {index} at work")
    (tmp_path / "fail").touch()
    assert [task.exit_code() for task in found] == [exits.WORKERS_FAILED, exits.WORKERS_FAILED, 9]
    assert "failed with exit code 9; its last lines:" in found[2].output
    assert "task-2 left before all workers had ended: closed" in found[0].output
    assert "workers of this task are at work, but the cluster has ended" in found[1].output


@pytest.mark.processes
def test_a_worker_that_fails_for_the_cluster_has_ended_does_not_lend_its_task_its_code(tasks, tmp_path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    found = tasks(3, "--servers", "1", "--", sys.executable, "train.py")
    for task in found:
        task.wait_for("trains")
    (tmp_path / "stop").touch()
    assert [task.exit_code() for task in found] == [exits.WORKERS_FAILED, exits.WORKERS_FAILED, 9]


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_task_that_is_ended_ends_the_others(tasks, number, which) -> None:
    found = tasks(2, "--servers", "2", "--", "sh", "-c", AT_WORK)
    for index, task in enumerate(found):
        task.wait_for(f"worker {index} at work")
    its = psutil.Process(found[which].pid).children(recursive=True)
    found[which].popen.send_signal(number)
    codes = [task.exit_code() for task in found]
    assert not psutil.wait_procs(its, 30)[1], "its coordinator waits some seconds for the goodbyes of others"
    assert codes[which] == (exits.TERMINATED if number == signal.SIGTERM else -signal.SIGKILL)
    assert codes[1 - which] in (exits.WORKERS_FAILED, exits.HOST_LOST, exits.COORDINATOR_LOST)


@pytest.mark.processes
def test_tasks_that_do_not_come_are_named(start) -> None:
    told = ("run", "--kernels", "numpy", "--address", f"127.0.0.1:{free_port()}", "--size", "3", "--timeout", "15")
    task = start(*told, "--rank", "0", "--", "true")
    assert task.exit_code() == exits.COORDINATOR_LOST
    assert "of 3 tasks these have not come in 15 s: 1, 2" in task.output


@pytest.mark.processes
def test_a_task_whose_coordinator_does_not_come_waits_for_no_checkpoint(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--rank", "1", "--size", "2", "--servers", "2", "--address", f"127.0.0.1:{free_port()}", "--timeout", "1")
    began = time.monotonic()
    assert run(["run", *where, "--checkpoint", str(tmp_path / "saved"), "--", "true"]) == DeadlineError.code
    assert "waiting for the coordinator" in capsys.readouterr().err
    assert time.monotonic() - began < allow(20.0)
