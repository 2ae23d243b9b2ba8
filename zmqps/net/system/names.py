"""Names in the place of addresses: looked up aside, tried one address after the other, looked up again.

libzmq would look a name up by itself: in the thread that carries all other messages, which stands still meanwhile; the
first address only; and without a word where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from zmqps.core.protocol.endpoints import host_of, ip_of, is_wildcard, join, split
from zmqps.errors import UnresolvedNameError
from zmqps.net.connections import leave_quietly
from zmqps.net.system.addresses import family_of, ipv4_first, resolve

#: Between two looks whether a connection is there, and if not what its name stands for by now.
LOOK_S = 1.0
#: One address of several is given so long to answer.
ANSWER_TIMEOUT = 1.0


def has_name(endpoint: str) -> bool:
    """Whether an endpoint has a host's name, not its address."""
    host = host_of(endpoint)
    return bool(host) and ip_of(host) is None and not is_wildcard(host)


def find(endpoint: str, before: str = "") -> str:
    """Return the endpoint with an address in the place of its name: the first one that answers, else the first.

    ``before`` is what was found the last time: it comes first as long as the name stands for it.

    Raises
    ------
    UnresolvedNameError
        The name does not resolve.
    """
    if not has_name(endpoint):
        return endpoint
    host, port = split(endpoint)
    addresses = sorted(ipv4_first(resolve(host)), key=lambda address: join(address, port) != before)
    return join(next((a for a in addresses if len(addresses) > 1 and answers(a, port)), addresses[0]), port)


def answers(address: str, port: int, timeout: float = ANSWER_TIMEOUT) -> bool:
    """Whether somebody listens at an address."""
    with contextlib.suppress(OSError), socket.socket(family_of(address)) as probe:
        probe.settimeout(timeout)
        probe.connect((address, port))
        leave_quietly(probe)
        return True
    return False


class Dialer:
    """Connects to what a name stands for, and where that is not there to what it stands for later.

    Parameters
    ----------
    endpoint
        With the name.
    loop
        In whose thread the others are called.
    is_up
        Whether there is a connection.
    dial
        Called with the endpoint to connect to, and the one that it was connected to before, if any.
    """

    def __init__(
        self,
        endpoint: str,
        loop: asyncio.AbstractEventLoop,
        is_up: Callable[[], bool],
        dial: Callable[[str, str], None],
        find: Callable[[str, str], str] = find,
    ) -> None:
        self.endpoint = endpoint
        self.found = ""  # what it is connected to
        self._loop, self._is_up, self._dial, self._find = loop, is_up, dial, find
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._look()

    def close(self) -> None:
        """Do not connect any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._closed:
            return
        if self.found and self._is_up():
            self._again()
        else:  # a thread of its own that nobody waits for: nothing can interrupt the resolver
            threading.Thread(target=self._search, name="zmqps-dial", daemon=True).start()

    def _again(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _search(self) -> None:
        found = ""
        with contextlib.suppress(UnresolvedNameError):  # who waits for it is told why: `zmqps.net.reach`
            found = self._find(self.endpoint, self.found)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take, found)

    def _take(self, found: str) -> None:
        if self._closed:
            return
        if found and found != self.found and not (self.found and self._is_up()):
            before, self.found = self.found, found
            self._dial(found, before)
        self._again()
