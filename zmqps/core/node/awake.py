"""A node's own time, which stands still while the node does.

A process that is stopped, swapped out, moved to another host or hung in a write cannot hear anybody. When it goes on,
all that it waits for seems overdue, although nobody else was late. So each look at the clock lets time go on by at most
what the node meant to wait, and a little more. Everything a node judges by time, silence first of all, is then judged
by the time in which it could listen.
"""

from __future__ import annotations

#: A loop looks at least so often, in seconds, also where nothing happens.
LOOK_S = 0.2
#: So much later than it meant to, in seconds, a node may be: longer, and it has stood still. With `LOOK_S` this is less
#: than the shortest heartbeat timeout that makes sense.
SLACK_S = 0.3


class AwakeClock:
    """Turns a real clock into the seconds that a node has been awake.

    It has stood still for `stood_s` seconds in all, up to the last look.
    """

    __slots__ = ("_seen", "stood_s")

    def __init__(self, real: float) -> None:
        self.stood_s = 0.0
        #: Its time at the last look, the most that it can be before the next one, and `stood_s`: in one attribute, for
        #: other threads ask while this one looks.
        self._seen = real, real + SLACK_S, 0.0

    def now(self, real: float) -> float:
        """Return the node's time; it never goes back, and any thread may ask.

        Not even for a thread that read ``real`` before the node stood still, and asks here afterwards.
        """
        since, until, stood_s = self._seen
        now = real - stood_s
        return since if now < since else until if now > until else now

    def look(self, real: float, wait_s: float) -> None:
        """The node is about to wait, for ``wait_s`` seconds at most: what it did before took until now."""
        since, until, stood_s = self._seen
        now = real - stood_s
        if now > until:
            now, self.stood_s = until, real - until
        elif now < since:
            now = since
        self._seen = now, now + wait_s + SLACK_S, self.stood_s
