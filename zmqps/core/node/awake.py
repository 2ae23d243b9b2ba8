"""A node's own time, which stops while the node is stopped.

A process that is stopped, swapped out, moved to another host or blocked in a write cannot receive. When it continues,
everything it waits for seems overdue, although no other node was late. So each reading of the clock advances time by at
most what the node meant to wait, and a little more. A node's judgements, of silence above all, are then based on the
time in which it could receive.
"""

from __future__ import annotations

#: A loop reads the clock at least this often, in seconds, even without events.
LOOK_S = 0.2
#: A node that is later than this, in seconds, was stopped. With `LOOK_S` this is less than the shortest sensible
#: heartbeat timeout.
SLACK_S = 0.3


class AwakeClock:
    """Turns a real clock into the seconds that a node has been awake.

    It was stopped for `stood_s` seconds in total, up to the last reading.
    """

    __slots__ = ("_seen", "stood_s")

    def __init__(self, real: float) -> None:
        self.stood_s = 0.0
        #: Its time at the last reading, its limit before the next one, and `stood_s`: in one attribute, because other
        #: threads read it at the same time.
        self._seen = real, real + SLACK_S, 0.0

    def now(self, real: float) -> float:
        """Return the node's time; it never goes back, and any thread may ask.

        Not even for a thread that read ``real`` before the node was stopped, and asks here afterwards.
        """
        since, until, stood_s = self._seen
        now = real - stood_s
        return since if now < since else until if now > until else now

    def look(self, real: float, wait_s: float) -> None:
        """The node is about to wait, for ``wait_s`` seconds at most: its work before took until now."""
        since, until, stood_s = self._seen
        now = real - stood_s
        if now > until:
            now, self.stood_s = until, real - until
        elif now < since:
            now = since
        self._seen = now, now + wait_s + SLACK_S, self.stood_s
