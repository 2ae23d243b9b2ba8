"""The connections that a node has opened to servers, and which of them it still needs."""

from __future__ import annotations

from collections.abc import Container
from itertools import count

from zmqps.core.protocol.events import Action, Disconnect, Peer, server_peer


class Connections:
    """The connections of one node to servers, by their endpoints.

    They come back by themselves when they break, for as long as they are there, and have memory of their own. So those
    that nobody needs any more are closed: servers come and go while a node stays.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._numbers = count()

    def open(self, endpoint: str) -> tuple[Peer, bool]:
        """Return the connection to an endpoint, and whether it was there: a second one would take its place."""
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
