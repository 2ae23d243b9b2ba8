"""Which node is behind which connection, and which connections a node has had."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from zmqps.core.protocol.events import Peer


class Peers:
    """Connections by routing id; of those of nodes that never said goodbye the oldest are forgotten.

    Parameters
    ----------
    limit
        How many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._incarnations: OrderedDict[Peer, bytes] = OrderedDict()
        #: Returns the incarnation behind a connection; None: nobody has said hello there.
        self.find: Callable[[Peer], bytes | None] = self._incarnations.get
        self._of: dict[bytes, set[Peer]] = {}

    def add(self, peer: Peer, incarnation: bytes) -> None:
        """A node has said who it is."""
        self._remove(peer)
        self._incarnations[peer] = incarnation
        self._of.setdefault(incarnation, set()).add(peer)
        while len(self) > self._limit:
            self._remove(next(iter(self._incarnations)))

    def __len__(self) -> int:
        return len(self._incarnations)

    def of(self, incarnation: bytes) -> frozenset[Peer]:
        """Return the connections of a node."""
        return frozenset(self._of.get(incarnation, ()))

    def forget(self, incarnation: bytes) -> None:
        """A node has said goodbye, or may not come back."""
        for peer in self._of.pop(incarnation, ()):
            del self._incarnations[peer]

    def _remove(self, peer: Peer) -> None:
        incarnation = self._incarnations.pop(peer, None)
        if incarnation is not None:
            self._of[incarnation].remove(peer)
            if not self._of[incarnation]:
                del self._of[incarnation]

    def validate(self, known: set[bytes]) -> None:
        """Assert that both directions agree, and that all are of nodes that are known."""
        assert len(self) <= self._limit
        assert {(p, i) for p, i in self._incarnations.items()} == {(p, i) for i, of in self._of.items() for p in of}
        assert all(self._of.values())
        assert set(self._of) <= known
