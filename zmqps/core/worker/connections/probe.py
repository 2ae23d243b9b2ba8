"""How a worker finds out what a silent server has: it asks, over the same connection, and does not guess."""

from __future__ import annotations

#: No answer of any kind for this long, and a server is asked; then after twice as long each time, up to
PROBE_S = 3.0
SLOWEST_PROBE_S = 30.0
#: Questions whose answers may be on their way; older ones are forgotten.
MAX_OUT = 16


class SilenceProbe:
    """When to ask a silent server, and what its answer says.

    What is sent over a connection arrives in its order, however long it takes, or the connection breaks. The
    question is a pull of nothing, which a server answers at once. So when it is answered the server has had all that
    was sent before, and has answered it, but for what it keeps waiting or had no memory for. On a slow connection the
    question waits behind what is on its way: nothing is sent twice only because it takes long.
    """

    def __init__(self) -> None:
        self.due: float | None = None  # when to ask; the link sets it anew at every answer
        self.wait_s = PROBE_S  # the silence before it
        self._out: dict[int, int] = {}  # question -> how much was sent before it

    def __contains__(self, number: int) -> bool:
        """Whether this is a question whose answer may be on its way."""
        return number in self._out

    def ask(self, now: float, number: int, num_sent: int) -> None:
        """Note that a question leaves, after so many messages."""
        if len(self._out) >= MAX_OUT:
            del self._out[next(iter(self._out))]
        self._out[number] = num_sent
        self.wait_s = min(2 * self.wait_s, SLOWEST_PROBE_S)
        self.due = now + self.wait_s

    def answered(self, number: int) -> int:
        """Return how much was sent before a question that is answered; 0 if it is none."""
        return self._out.pop(number, 0)
