"""A second server dies at each message of a promotion and of a filling: nothing is lost where a copy is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator import AsyncTraining, BoundedTraining, Faults, Node, Simulation, SyncTraining, Training
from tests.simulator.placement.replicas import MESSAGES, replicated
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol.messages import Message

pytestmark = pytest.mark.repeats

#: When the first server dies: its shard is promoted then, and a copy of it is filled on the server that comes instead.
FIRST_S = 3.0
#: Of the messages about copies that follow, the default tests take one in so many.
STRIDE = 53
#: No message has this number.
NEVER = -1
TRAININGS: dict[str, Callable[[], Training]] = {
    "async": lambda: AsyncTraining(steps=6, parameters=4, size=32, compute_s=0.5, timeout=60.0),
    "bounded": lambda: BoundedTraining(1, steps=6, parameters=4, size=32, compute_s=0.5, timeout=60.0),
    "sync": lambda: SyncTraining(steps=6, parameters=4, size=32, compute_s=0.5, timeout=60.0),
}


class SecondLoss:
    """Kills a server, and the one at the n-th message about copies after that, or the next where it may die."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.seen = 0
        self.killed = ""
        self._simulation = simulation
        self._number = number
        simulation.on_send.append(lambda sender, receiver, message: self._at(sender, message))
        simulation.on_receive.append(lambda receiver, sender, message: self._at(receiver, message))
        simulation.at(FIRST_S, lambda: simulation.kill(simulation.servers[0]))

    def _at(self, node: Node, message: Message) -> None:
        simulation = self._simulation
        if simulation.now < FIRST_S or node.role != "server" or not isinstance(message, MESSAGES) or not node.alive:
            return
        self.seen += 1
        assert simulation.losses is not None
        if self.seen > self._number >= 0 and not self.killed and simulation.losses.may_lose(node):
            self.killed = f"{node.name} at {type(message).__name__}"
            simulation.kill(node)


def run(mode: str, number: int) -> SecondLoss:
    """Run with a second loss at a message of this number."""
    training = TRAININGS[mode]()
    options = CoordinatorOptions(servers=3, workers=3, slice_size=training.slice_nbytes)
    simulation = Simulation(
        1, 3, 3, Faults(delay=0.003), training, options=replicated(options, 1), supervised=True, calm_s=12.0
    )
    loss = SecondLoss(simulation, number)
    simulation.run()
    return loss


@pytest.mark.parametrize("mode", TRAININGS)
def test_a_server_dies_at_messages_of_a_promotion(mode: str) -> None:
    every = range(0, run(mode, NEVER).seen, STRIDE)
    killed = [loss.killed for loss in (run(mode, number) for number in every) if loss.killed]
    assert len(killed) >= len(every) // 2, f"the second loss is seldom: {killed}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("mode", TRAININGS)
def test_a_server_dies_at_each_message_of_a_promotion(mode: str, first: int) -> None:
    for number in range(first, run(mode, NEVER).seen, 8):
        run(mode, number)
