"""A node whose Hello is not answered: it must have looked why, and tell of a server that it cannot reach."""

from __future__ import annotations

from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.node.member import Handshake
from zmqps.core.worker.session import SessionMachine
from zmqps.testing.engine import Node

#: A Hello that nobody answers for so long has been looked after, and the answer has come: users are told within 5 s.
TOLD_S = 5.0


def check_told(node: Node, now: float) -> None:
    """Assert that a node knows why somebody does not answer it; ``now`` it has just taken an event."""
    machine = node.machine
    if isinstance(machine, CoordinatorMachine):
        return
    since = max(node.stopped_until, node.busy_until - 1.0)
    assert not _is_late(machine.member.handshake, since, now), f"{node.name} does not say why the coordinator is silent"
    if isinstance(machine, SessionMachine):
        for link in machine.transfers.links:
            assert not _is_late(link.handshake, since, now), f"{node.name} does not say why {link.title} is silent"
            if link.handshake.silence(now) > TOLD_S and now > since + TOLD_S:
                assert link.title in str(machine.transfers.unreached(now)), f"{node.name} keeps it to itself"


def _is_late(handshake: Handshake, since: float, now: float) -> bool:
    return handshake.silence(now) > TOLD_S and now > since + TOLD_S and not handshake.why
