"""The lives of a worker that its supervisor starts again: how many there may be, when the next one begins, its token.

All lives of one worker have a token in their environment, and a number. By these the coordinator lets a life take the
place of its predecessor at once, even before that one's loss is known.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from zmqps.core.protocol import exits
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import counted

#: In the environment of a worker that is started again.
TOKEN, RESTART = "ZMQPS_WORKER_TOKEN", "ZMQPS_WORKER_RESTART"
#: How often a node that fails is started again, where the user does not say, and how long that may take.
RESTARTS = 3
RESTART_S = 30.0
#: How long to wait before a process is started again: so long at first, and twice as long each time up to the most.
PAUSE_S, MOST_PAUSE_S = 0.5, 30.0
#: How long workers may take to end after SIGTERM, where the user does not say.
DRAIN_TIMEOUT_S = 5.0
#: Exit codes after which another life would end in the same way: what it was told cannot be used, as click and argparse
#: say it, or there is no such command, as shells do.
HOPELESS = (exits.USAGE, 126, 127)


def failed(code: int) -> bool:
    """Whether a worker that ended with this code has failed: it was neither done nor asked to go."""
    return code not in (exits.OK, exits.DRAINED)


class Restarts:
    """The lives of one worker, counted from the first one, which is no restart.

    Parameters
    ----------
    most
        How often it may be started again in all.
    pause
        After how many seconds the first time.
    """

    def __init__(self, most: int, pause: float = PAUSE_S) -> None:
        self.num = 0
        self.pause = pause  # before the life that comes next
        self._most = most
        self._token = secrets.token_hex(KEY_NBYTES)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the life under way; empty if the process is never restarted."""
        return {TOKEN: self._token, RESTART: str(self.num)} if self._most else {}

    def may_follow(self, code: int) -> bool:
        """Whether another life may follow one that ended with this code."""
        return failed(code) and code not in HOPELESS and self.num < self._most

    def what_follows(self, code: int) -> str:
        """Say what follows after a life that ended with this code; nothing where there was never to be another one."""
        if not self._most or not failed(code):
            return ""
        if self.may_follow(code):
            return f"it starts again in {self.pause:g} s: restart {self.num + 1} of {self._most}"
        if code in HOPELESS:
            return f"it does not start again: exit code {code} says that this would be no use"
        return f"it does not start again: it was restarted {counted(self._most, 'time')}, as often as it may"

    def again(self, why: str) -> str:
        """Say that the next life begins, and why that is of use."""
        return f"is started again ({self.num + 1} of {self._most}): {why}"

    def begin(self) -> None:
        """The next life begins."""
        assert self.num < self._most
        self.num += 1
        self.pause = max(self.pause, min(2 * self.pause, MOST_PAUSE_S))
