"""``zmqps run`` on hosts that share no files: the same command on each, with keys, to its end and to other ends."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import pytest

from tests.lan.cluster import NAME, PORT, TRAINER, check_emptied, check_recording, hand_out, make_keys
from tests.lan.host import Process
from tests.lan.lan import Lan
from zmqps.core.protocol import exits

SIZE = 3
#: A worker that trains until somebody ends it.
ENDLESS = ("python", TRAINER, "--seconds", 600, "--pause", 0.2)


def run(lan: Lan, *words: Any, options: Sequence[Any] = ()) -> list[Process]:
    """Start a task on each of the first hosts, which have copies of the same keys."""
    first, *others = hosts = lan.hosts[:SIZE]
    make_keys(first)
    hand_out(first, *others)
    flags = ["--keys", "keys", "--address", f"{first.address}:{PORT}", "--size", SIZE, "--servers", 2]
    flags += ["--kernels", "numpy", *options]
    return [host.zmqps("run", *flags, "--rank", rank, "--", *words) for rank, host in enumerate(hosts)]


def train(lan: Lan) -> list[Process]:
    """Start tasks whose workers go on until they are ended, and wait until all have begun."""
    tasks = run(lan, *ENDLESS, options=["--heartbeat-timeout", 4])
    for rank, task in enumerate(tasks):
        task.said(rf"worker-{rank}@.*step 1:", 60)
    return tasks


def logs(tasks: Sequence[Process]) -> str:
    return "\n".join(task.output for task in tasks)


@pytest.mark.lan("capture")
def test_the_same_command_on_each_host_trains_with_keys_and_leaves_nothing(lan: Lan) -> None:
    last = lan.hosts[2]
    with lan.capture(last, last.directory / "frames.pcap") as frames:
        tasks = run(lan, "python", TRAINER, "--mb", 1, "--parameter", NAME)
        assert [task.finish(60) for task in tasks] == [0] * SIZE, logs(tasks)
    for rank, task in enumerate(tasks):
        assert f"worker-{rank}@{lan.names[rank]}" in task.output
        assert "figures" in task.output
    tasks[0].said(f"the workers of all {SIZE} tasks have ended well")
    check_recording(frames, readable=False)
    check_emptied(lan.hosts)


@pytest.mark.lan
@pytest.mark.slow
def test_a_task_that_is_killed_ends_the_others_and_leaves_nothing(lan: Lan) -> None:
    tasks = train(lan)
    tasks[2].kill()
    assert tasks[2].finish() == -signal.SIGKILL
    assert tasks[0].finish() in (exits.WORKERS_FAILED, exits.HOST_LOST), logs(tasks)
    assert tasks[1].finish() == exits.WORKERS_FAILED, logs(tasks)
    tasks[0].said("task-2 left before all workers had ended")
    check_emptied(lan.hosts)


@pytest.mark.lan
def test_a_host_that_vanishes_ends_the_tasks_of_the_others(lan: Lan) -> None:
    tasks = train(lan)
    lan.power_off(lan.hosts[2])
    assert tasks[0].finish() == exits.HOST_LOST, logs(tasks)
    assert tasks[1].finish() == exits.WORKERS_FAILED, logs(tasks)
    tasks[0].said("task-2 left before all workers had ended: lost")
    check_emptied(lan.hosts[:2])


@pytest.mark.lan
@pytest.mark.slow
def test_the_host_of_rank_0_that_vanishes_ends_the_tasks_of_the_others(lan: Lan) -> None:
    tasks = train(lan)
    lan.power_off(lan.hosts[0])
    assert [task.finish() for task in tasks[1:]] == [exits.COORDINATOR_LOST] * 2, logs(tasks)
    check_emptied(lan.hosts[1:])


@pytest.mark.lan
@pytest.mark.slow
def test_a_worker_that_fails_ends_all_tasks_and_its_own_with_its_code(lan: Lan) -> None:
    script = "import os, sys, time; time.sleep(0 if os.environ['ZMQPS_WORKER_INDEX'] == '1' else 60); sys.exit(3)"
    tasks = run(lan, "python", "-c", script)
    assert [task.finish() for task in tasks] == [exits.WORKERS_FAILED, 3, exits.WORKERS_FAILED], logs(tasks)
    check_emptied(lan.hosts)


@pytest.mark.lan
@pytest.mark.slow
def test_a_task_that_is_told_to_end_ends_all(lan: Lan) -> None:
    tasks = train(lan)
    tasks[1].terminate()
    codes = [exits.WORKERS_FAILED, exits.TERMINATED, exits.WORKERS_FAILED]
    assert [task.finish() for task in tasks] == codes, logs(tasks)
    check_emptied(lan.hosts)
