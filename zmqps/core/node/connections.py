"""The connections that a node has opened to servers, and which of them it still needs."""

from __future__ import annotations

from collections.abc import Container
from itertools import count

from zmqps.core.protocol.events import Action, Disconnect, Peer, server_peer


class Connections:
    """The connections of one node to servers, by their endpoints.

    They reconnect by themselves as long as they exist, and use memory. So unneeded ones are closed: servers are added
    and removed while a node lives.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._numbers = count()

    def open(self, endpoint: str) -> tuple[Peer, bool]:
        """Return the connection to an endpoint, and whether it existed: a second one would replace it."""
        was_open = endpoint in self._peers
        if not was_open:
            self._peers[endpoint] = server_peer(next(self._numbers))
        return self._peers[endpoint], was_open

    def close_others(self, needed: Container[Peer]) -> list[Action]:
        """Close all but those that are needed."""
        others = {endpoint: peer for endpoint, peer in self._peers.items() if peer not in needed}
        for endpoint in others:
            del self._peers[endpoint]
        return [Disconnect(peer) for peer in others.values()]

    def validate(self, needed: Container[Peer]) -> None:
        """Assert that all are needed."""
        assert all([peer in needed for peer in self._peers.values()])
