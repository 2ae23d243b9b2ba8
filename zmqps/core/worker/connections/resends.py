"""Which requests of a link are to be sent again: some as soon as something may leave, others a little later."""

from __future__ import annotations

from zmqps.core.worker.connections.outbox import Request
from zmqps.core.worker.transfer import Transfer

#: A request that a server lacked the memory for is sent again after this long, then after twice as long each time,
RETRY_S = 0.1
SLOWEST_RETRY_S = 1.0
#: until it has been refused for so long; then whoever asked is told.
SHORT_S = 10.0


class Resends:
    """The requests that are to be sent again although the connection holds; when it breaks, all are.

    Attributes
    ----------
    at_once
        What the server turned out not to have, in this order. Whoever sends it clears it. On the way of every step it
        is looked at without a call.
    due
        When the first of those leaves that were put off; None: none was.
    """

    __slots__ = ("_put_off", "at_once", "due")

    def __init__(self) -> None:
        self.at_once: list[Request] = []
        self.due: float | None = None
        self._put_off: list[Request] = []

    @staticmethod
    def refused(request: Request, now: float) -> float | None:
        """Return when to send a request again that the server lacked the memory for; None: it has for long."""
        since = request.refused_at = now if request.refused_at is None else request.refused_at
        return None if now >= since + SHORT_S else now + min(RETRY_S + now - since, SLOWEST_RETRY_S)

    def put_off(self, request: Request, at: float) -> None:
        """Send a request again, then."""
        self._put_off.append(request)
        request.retry_at = at
        self.due = at if self.due is None else min(self.due, at)

    def take(self, now: float) -> list[Request]:
        """Return what was put off until now: it is not any more."""
        taken = [request for request in self._put_off if (request.retry_at or 0.0) <= now]
        self._put_off = [request for request in self._put_off if (request.retry_at or 0.0) > now]
        for request in taken:
            request.retry_at = None
        self.due = self._first()
        return taken

    def clear(self) -> None:
        """All that is in flight is sent again anyway, or nothing is."""
        self.at_once.clear()
        for request in self._put_off:
            request.retry_at = None
        self._put_off.clear()
        self.due = None

    def of(self, transfer: Transfer) -> list[Request]:
        """Return what was put off of a transfer."""
        return [request for request in self._put_off if request.transfer is transfer]

    def __bool__(self) -> bool:
        """Whether something was put off."""
        return bool(self._put_off)

    def _first(self) -> float | None:
        return min([request.retry_at or 0.0 for request in self._put_off], default=None)

    def validate(self) -> None:
        """Assert that nothing is put off beyond the time when it is due."""
        assert self.due == self._first()
