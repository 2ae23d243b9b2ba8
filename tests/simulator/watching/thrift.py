"""Messages that are not needed: sent twice, though no connection has broken; or when no request waits for them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.simulator.engine import Node
from zmqps.core.protocol.messages import Message, Pull, Values, Withdraw
from zmqps.core.protocol.wire import encode

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: How much more than what is needed may travel between workers and servers.
MOST = 1.05


class Thrift:
    """Watches what workers and servers send each other.

    Parameters
    ----------
    simulation
        Whose.
    strict
        Whether next to nothing may be sent twice: it counts what was sent, and what of it was needed, each once.
    """

    def __init__(self, simulation: SimulatedCluster, *, strict: bool) -> None:
        self.needed = self.sent = 0
        self._strict = strict
        self._seen: dict[tuple[str, str], set[tuple[type[Message], Any]]] = defaultdict(set)
        # pulls that a server has, by the two incarnations and the request; True: it was told that the pull is withdrawn
        self._withdrawn: dict[tuple[bytes, bytes, int], bool] = {}
        # repeated pulls by worker, server and request; True: it and the answer crossed on the way
        self._repeated: dict[tuple[str, str, int], bool] = {}
        self._nodes = simulation.nodes
        simulation.on_send.append(self._send)
        simulation.on_receive.append(self._receive)

    def _receive(self, receiver: Node, sender: str, message: Message) -> None:
        if receiver.role == "server" and isinstance(message, (Pull, Withdraw)) and sender in self._nodes:
            key = receiver.identity.incarnation, self._nodes[sender].identity.incarnation, message.request
            if isinstance(message, Pull) or key in self._withdrawn:
                self._withdrawn[key] = isinstance(message, Withdraw)
            repeat = sender, receiver.name, message.request
            if repeat in self._repeated and (Values, message.request) in self._seen[receiver.name, sender]:
                self._repeated[repeat] = True

    def _send(self, sender: Node, receiver: str, message: Message) -> None:
        if "coordinator" in (sender.role, receiver):
            return
        if sender.role == "server" and isinstance(message, Values) and receiver in self._nodes:
            key = sender.identity.incarnation, self._nodes[receiver].identity.incarnation, message.request
            assert not self._withdrawn.get(key), f"{sender.name} sends {receiver} values that it was told not to"
        if self._strict:
            nbytes = sum(memoryview(frame).nbytes for frame in encode(message))
            request, before = getattr(message, "request", 0), self._seen[sender.name, receiver]
            first = (type(message), request) not in before
            if isinstance(message, Pull) and not first and (Values, request) not in self._seen[receiver, sender.name]:
                self._repeated.setdefault((sender.name, receiver, request), False)
            crossed = isinstance(message, Values) and self._repeated.get((receiver, sender.name, request), False)
            if crossed:
                del self._repeated[receiver, sender.name, request]
            self.sent += nbytes
            self.needed += nbytes if first or crossed else 0
            before.add((type(message), request))

    def check_end(self) -> None:
        """Assert that next to nothing was sent twice."""
        assert self.sent <= MOST * self.needed, f"{self.sent} bytes sent where {self.needed} are needed"
