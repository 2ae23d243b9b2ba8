"""Jobs that end are saved once more: what counts as saved where a worker stands still, and what is begun too late."""

from __future__ import annotations

import pytest

from tests.simulation.test_invariants import Patch, caught
from tests.simulator import AsyncTraining, Simulation
from tests.simulator.engine import Node
from tests.simulator.network import Faults
from tests.simulator.placement.stores import Disk
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.coordinator.saving.making import Wishes
from zmqps.core.protocol.messages import Ack, Message, Save, Saved
from zmqps.core.protocol.messages.saving import SaveStage

TIMEOUT_S = 2.0
STOPS_S = 2.0 * TIMEOUT_S


def test_a_push_is_in_the_last_checkpoint_though_its_worker_hears_late_that_it_was_acknowledged() -> None:
    disk = Disk()
    options = CoordinatorOptions(servers=2, workers=2, heartbeat_interval=0.5, heartbeat_timeout=TIMEOUT_S, once=True)
    training = AsyncTraining(steps=2, lives=2, restart=False, compute_s=0.1)
    simulation = Simulation(1, 2, 2, Faults(delay=0.002), training, options=options, disk=disk)
    woken, saves_at, heard_at = [0.0], list[float](), list[float]()

    def stop(sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, Ack) and receiver == "worker-1" and not woken[0]:
            woken[0] = simulation.now + STOPS_S
            simulation.stop(simulation.nodes[receiver], STOPS_S)
        elif isinstance(message, Save):
            saves_at.append(simulation.now)

    def hear(receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, Ack) and receiver.name == "worker-1":
            heard_at.append(simulation.now)

    def swallow(sender: Node, receiver: str, message: Message) -> bool:
        return isinstance(message, Saved) and message.stage == SaveStage.WRITTEN and simulation.now <= woken[0] + 0.1

    simulation.on_send.append(stop)
    simulation.on_receive.append(hear)
    simulation.swallows.append(swallow)
    simulation.run()
    assert len(disk.published) == 1
    assert max(saves_at[:2]) < heard_at[0], "it was begun while the worker stood still"


@pytest.mark.repeats
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_a_coordinator_that_saves_on_when_its_cluster_ends(monkeypatch: Patch, mode: str) -> None:
    monkeypatch.setattr(Checkpoints, "close", lambda checkpoints, now: [])
    monkeypatch.setattr(Wishes, "why_not", lambda wishes, wish: "")
    caught(f"{mode}-saves-ended", "is saved although its cluster ends")
