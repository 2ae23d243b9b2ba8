"""Listens to who is told to be the chief of its job: one at a time, and always one."""

from __future__ import annotations

from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.protocol.messages import HeartbeatAck, Message
from zmqps.testing.engine import Engine, Node


class Chiefs:
    """Asserts that a coordinator tells those, and no others, that are the first of those who count."""

    def __init__(self, simulation: Engine) -> None:
        self._nodes = simulation.nodes
        simulation.on_send.append(self._sent)

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        if not isinstance(message, HeartbeatAck) or receiver not in self._nodes:
            return
        machine, who = sender.machine, self._nodes[receiver].identity.incarnation
        assert isinstance(machine, CoordinatorMachine)
        member = machine.membership.members.get(who)
        run = None if member is None else machine.runs.get(member.job)
        if run is None or member is None:
            return
        ranks = [worker.rank for worker in run.attendance]
        is_first = who in run.attendance and member.rank == min(ranks)
        assert is_first or not message.chief, f"{receiver} is told to be the chief: the first has rank {min(ranks)}"
        may_wait = member.rank > 0 and run.num_missing > 0
        assert message.chief or not is_first or may_wait, f"nobody is told to be the chief: {receiver} should be"
