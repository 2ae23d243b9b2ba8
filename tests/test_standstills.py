"""Real processes are stopped for a while and go on: nobody is given up for what its judge has slept through."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.durable.nodes import Nodes
from tests.pace import stretch
from tests.team import PATIENCE, Team
from tests.test_coordinator_returns import ASYNC, SYNC, ZEROS, Pushing, check_sum, gradients
from zmqps.nodes.inquiry import inquire, run_blocking

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TIMEOUT_S = stretch(1.5)

#: Which nodes stand still at once, and for how many timeouts: where the coordinator sleeps too, nobody is judged.
STOPPED = [
    (("coordinator",), 2.5),
    (("coordinator", "server-0"), 1.5),
    (("coordinator", "server-0", "server-1", "server-2"), 1.5),
    (("server-1",), 0.5),
]


def started(directory: Path) -> Nodes:
    return Nodes(
        directory, 3, journal=directory / "journal", replicas=1, heartbeat_interval=0.2, heartbeat_timeout=TIMEOUT_S,
        patience=120.0,
    )  # fmt: skip


def stand_still(cluster: Nodes, names: Sequence[str], seconds: float) -> None:
    """Stop processes for so long."""
    for name in names:
        cluster.processes[name].popen.send_signal(signal.SIGSTOP)
    threading.Event().wait(seconds)
    for name in names:
        cluster.processes[name].popen.send_signal(signal.SIGCONT)


def members(cluster: Nodes) -> set[tuple[str, int, int]]:
    status = run_blocking(inquire(cluster.address, timeout=PATIENCE))
    return {(member["role"], member["rank"], member["pid"]) for member in status["members"]}


@pytest.mark.parametrize(("names", "times"), STOPPED)
def test_asynchronous_pushes_are_applied_once_and_nobody_is_given_up(
    tmp_path: Path, names: tuple[str, ...], times: float
) -> None:
    with started(tmp_path) as cluster, Team(cluster.address, 2, ZEROS, **ASYNC) as team:
        pushing = Pushing(team)
        pushing.wait_for_more()
        before = members(cluster)
        stand_still(cluster, names, times * TIMEOUT_S)
        pushing.wait_for_more()
        assert members(cluster) == before
        check_sum(team, pushing.stop())
        assert "backups take over" not in cluster.log("coordinator")


@pytest.mark.parametrize(("names", "times"), STOPPED)
def test_a_synchronous_step_waits_for_those_that_stand_still(
    tmp_path: Path, names: tuple[str, ...], times: float
) -> None:
    with started(tmp_path) as cluster, Team(cluster.address, 2, ZEROS, **SYNC) as team:
        assert team.step(gradients)[0].version == 1
        before = members(cluster)
        asleep = threading.Thread(target=stand_still, args=(cluster, names, times * TIMEOUT_S))
        asleep.start()
        for version in range(2, 12):
            pulled = team.step(gradients)[0]
            assert pulled.version == version
        asleep.join(PATIENCE)
        pulled = team.step(gradients)[0]
        assert {float(value) for value in pulled["w"]} == {11.0 * 12}
        assert members(cluster) == before
