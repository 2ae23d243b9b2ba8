"""Host names instead of addresses: resolved in the background, tried address by address, resolved again.

libzmq would resolve a name itself: in the thread that carries all other messages, which is blocked meanwhile; only the
first address; and without an error if there is none.
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

#: Seconds between two checks whether a connection exists, and if not, of the name's present address.
LOOK_S = 1.0
#: How long one of several addresses may take to answer.
ANSWER_TIMEOUT = 1.0


def has_name(endpoint: str) -> bool:
    """Whether an endpoint has a host's name, not its address."""
    host = host_of(endpoint)
    return bool(host) and ip_of(host) is None and not is_wildcard(host)


def find(endpoint: str, before: str = "") -> str:
    """Return the endpoint with an address instead of its name: the first one that answers, else the first.

    ``before`` is the last result: it comes first as long as the name still has it.

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
    """Whether an address has a listener."""
    with contextlib.suppress(OSError), socket.socket(family_of(address)) as probe:
        probe.settimeout(timeout)
        probe.connect((address, port))
        leave_quietly(probe)
        return True
    return False


class Dialer:
    """Connects to the address of a name, and if that fails to its later addresses.

    Parameters
    ----------
    endpoint
        The endpoint with the name.
    loop
        The other functions are called in its thread.
    is_up
        Whether there is a connection.
    dial
        Called with the endpoint to connect to, and the earlier one, if any.
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
        self.found = ""  # the connected endpoint
        self._loop, self._is_up, self._dial, self._find = loop, is_up, dial, find
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._look()

    def close(self) -> None:
        """Stop connecting."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._closed:
            return
        if self.found and self._is_up():
            self._again()
        else:  # a thread that is never joined: the resolver cannot be interrupted
            threading.Thread(target=self._search, name="zmqps-dial", daemon=True).start()

    def _again(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _search(self) -> None:
        found = ""
        with contextlib.suppress(UnresolvedNameError):  # `zmqps.net.routes` reports the reason
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
