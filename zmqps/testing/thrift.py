"""What travels twice although no connection has broken: it may hardly be anything."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from zmqps.core.protocol.messages import Message
from zmqps.core.protocol.wire import encode
from zmqps.testing.engine import Node

if TYPE_CHECKING:
    from zmqps.testing.cluster import SimulatedCluster

#: How much more than what is needed may travel between workers and servers.
MOST = 1.05


class Thrift:
    """Counts what workers and servers send each other, and what of it was needed: each message once."""

    def __init__(self, simulation: SimulatedCluster) -> None:
        self.needed = self.sent = 0
        self._seen: dict[tuple[str, str], set[tuple[type[Message], Any]]] = defaultdict(set)
        simulation.on_send.append(self._send)

    def _send(self, sender: Node, receiver: str, message: Message) -> None:
        if "coordinator" in (sender.role, receiver):
            return
        nbytes = sum(memoryview(frame).nbytes for frame in encode(message))
        this, before = (type(message), getattr(message, "request", None)), self._seen[sender.name, receiver]
        self.sent += nbytes
        self.needed += nbytes if this not in before else 0
        before.add(this)

    def check_end(self) -> None:
        """Assert that next to nothing was sent twice."""
        assert self.sent <= MOST * self.needed, f"{self.sent} bytes sent where {self.needed} are needed"
