"""Watches which worker is told to be the chief of its job: one at a time, and always one."""

from __future__ import annotations

from functools import partial

from tests.simulator.engine import Engine, Node
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.protocol.messages import HeartbeatAck, Message


class Chiefs:
    """Asserts that a coordinator tells only the first of the workers that count.

    Several may be lost in one event, after which a worker has been told more than once: the last counts.
    """

    def __init__(self, simulation: Engine) -> None:
        self._simulation = simulation
        self._told: dict[str, bool] = {}  # in this event: the worker, and whether it is the chief
        simulation.on_send.append(self._sent)

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        if not isinstance(message, HeartbeatAck) or receiver not in self._simulation.nodes:
            return
        if receiver not in self._told:
            self._simulation.at(self._simulation.now, partial(self._check, sender, receiver))
        self._told[receiver] = bool(message.chief)

    def _check(self, sender: Node, receiver: str) -> None:
        told, machine = self._told.pop(receiver), sender.machine
        if not sender.alive:  # killed on the way: what it knew last, it has not said to all
            return
        assert isinstance(machine, CoordinatorMachine)
        who = self._simulation.nodes[receiver].identity.incarnation
        member = machine.membership.members.get(who)
        run = None if member is None else machine.runs.get(member.job)
        if run is None or member is None:
            return
        ranks = [worker.rank for worker in run.attendance]
        is_first = who in run.attendance and member.rank == min(ranks)
        assert is_first or not told, f"{receiver} is told to be the chief: the first has rank {min(ranks)}"
        may_wait = member.rank > 0 and run.num_missing > 0
        assert told or not is_first or may_wait, f"no worker is told to be the chief: {receiver} should be"
