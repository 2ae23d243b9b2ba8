"""How requests to drain or scale have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from zmqps.core.coordinator.journal import Plain, packed_error, unpacked_error
from zmqps.core.protocol.messages import Draining
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.errors import PSError

#: How many ended requests are remembered, so that a repeated one gets the same answer.
MAX_ASKED = 64


class Endings:
    """How requests from outside, each with a nonce, have ended."""

    def __init__(self) -> None:
        self.by_nonce: OrderedDict[bytes, PSError | str] = OrderedDict()

    def note(self, nonces: Iterable[bytes], how: PSError | str) -> None:
        """Requests have ended so."""
        for nonce in nonces:
            self.by_nonce[nonce] = how
        while len(self.by_nonce) > MAX_ASKED:
            self.by_nonce.popitem(last=False)

    def answer(self, nonce: bytes, request: int) -> Draining | None:
        """Return the answer to a repeated request, or raise the error that it ended with; None: it has not ended."""
        ended = self.by_nonce.get(nonce)
        if isinstance(ended, PSError):
            raise ended.again()
        return None if ended is None else Draining(request, DrainState.GONE, ended)

    def dump(self) -> Plain:
        """Return what is kept of them."""
        return [
            [nonce, how, b""] if isinstance(how, str) else [nonce, "", packed_error(how)]
            for nonce, how in self.by_nonce.items()
        ]

    def restore(self, kept: Plain) -> None:
        """Continue with what was kept."""
        for nonce, text, error in kept:
            self.by_nonce[nonce] = unpacked_error(error) if error else text

    def validate(self) -> None:
        """Assert that they are not too many."""
        assert len(self.by_nonce) <= MAX_ASKED
