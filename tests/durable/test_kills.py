"""The kill matrix: each role, killed with SIGKILL in each phase of each mode, with copies of shards and without.

With copies a server costs nothing; without them its job fails at once with an error that says so. The coordinator costs
nothing either way. Nobody hangs, and a new job can be trained afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.durable.nodes import Nodes
from tests.durable.soak import HEARTBEAT, wait_until_whole
from tests.durable.training import SLICE_NBYTES, Training
from zmqps.errors import PSError

WORKERS = 2


class Scene:
    """A cluster, the job that is trained on it, and who is to be killed."""

    def __init__(self, nodes: Nodes, mode: str, victim: str) -> None:
        self.nodes = nodes
        self.victim = victim
        self._mode = mode

    def train(self) -> Training:
        """Begin to train."""
        return Training(self.nodes.address, self._mode, WORKERS)

    def kill(self) -> None:
        """Kill the victim, and start it again."""
        self.nodes.kill(self.victim)
        self.nodes.restart(self.victim)


def before_a_job(scene: Scene) -> Training:
    scene.kill()
    return scene.train()


def between_steps(scene: Scene) -> Training:
    training = scene.train()
    training.wait_for(10)
    scene.kill()
    training.wait_for(10)
    return training


def at_the_end(scene: Scene) -> Training:
    training = scene.train()
    training.wait_for(10)
    training.stop()
    scene.kill()
    return training


def twice_in_a_row(scene: Scene) -> Training:
    training = between_steps(scene)
    wait_until_whole(scene.nodes)
    scene.kill()
    training.wait_for(10)
    return training


PHASES: list[Callable[[Scene], Training]] = [before_a_job, between_steps, at_the_end, twice_in_a_row]


def cases(replicas: int) -> list[Any]:
    """Return the matrix; every mode and every phase is among what runs each time, the rest among the long tests."""
    found = []
    for r, role in enumerate(("coordinator", "server-0")):
        for m, mode in enumerate(("async", "bounded", "sync")):
            for p, phase in enumerate(PHASES):
                mark = pytest.mark.processes if (m + p + r) % 4 == 0 else pytest.mark.slow
                found.append(
                    pytest.param(role, mode, phase, replicas, marks=mark, id=f"{role}-{mode}-{phase.__name__}")
                )
    return found


@pytest.mark.parametrize(("victim", "mode", "phase", "replicas"), cases(1))
def test_with_copies_nothing_is_lost(
    victim: str, mode: str, phase: Callable[[Scene], Training], replicas: int, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    with (
        Nodes(tmp_path, 2, journal=journal, replicas=replicas, slice_size=SLICE_NBYTES, **HEARTBEAT) as nodes,
        phase(Scene(nodes, mode, victim)) as training,
    ):
        assert training.finish() == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_without_copies_a_lost_server_ends_its_job_at_once_and_the_next_one_trains(mode: str, tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, slice_size=SLICE_NBYTES, **HEARTBEAT) as nodes:
        scene = Scene(nodes, mode, "server-0")
        with pytest.raises(PSError, match="server-0"):
            between_steps(scene)
        wait_until_whole(nodes)
        with scene.train() as training:
            training.wait_for(5)
            assert training.finish() == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("phase", PHASES)
def test_without_copies_a_lost_coordinator_costs_nothing(
    mode: str, phase: Callable[[Scene], Training], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    with (
        Nodes(tmp_path, 2, journal=journal, slice_size=SLICE_NBYTES, **HEARTBEAT) as nodes,
        phase(Scene(nodes, mode, "coordinator")) as training,
    ):
        assert training.finish() == []
