"""A node without an answer, or whose connection has ended: it must know why, and tell of a server it cannot reach."""

from __future__ import annotations

from tests.simulator.engine import Node
from zmqps.core.node.handshake import Handshake
from zmqps.core.server.machine import ServerKernel
from zmqps.core.worker.session import SessionKernel

#: A silence of so long has been looked after, and the answer has come: users are told within 5 s.
TOLD_S = 5.0


def check_told(node: Node, now: float, since: float) -> None:
    """Assert that a node knows why another does not answer it; it has just taken an event, and woke at ``since``."""
    machine = node.machine
    if not isinstance(machine, (SessionKernel, ServerKernel)):
        return
    assert not _is_late(machine.member.handshake, since, now), f"{node.name} does not say why the coordinator is silent"
    if isinstance(machine, SessionKernel):
        for link in machine.links.by_shard:
            assert not _is_late(link.server.handshake, since, now), (
                f"{node.name} does not say why {link.server.title} is silent"
            )
            if now <= since + TOLD_S:
                continue
            # what the network knows, whatever the node has made of it
            missed_since = node.connections[link.server.peer].missed_since
            since_s = 0.0 if missed_since is None else now - max(missed_since, link.server.handshake.said_at)
            missed = since_s > TOLD_S and not link.server.handshake.is_over
            if missed or link.server.handshake.silence(now) > TOLD_S:
                assert link.server.handshake.why, f"{node.name} does not say why {link.server.title} does not come back"
                assert link.server.title in str(machine.links.unreached(now)), f"{node.name} keeps it to itself"


def _is_late(handshake: Handshake, since: float, now: float) -> bool:
    return handshake.since is not None and handshake.silence(now) > TOLD_S < now - since and not handshake.why
