"""Handshakes that fail for good: libzmq reports them only to the monitor of a socket.

A refused DEALER stays silent, and one that cannot agree with the other end retries forever.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from functools import partial

import zmq

from zmqps.core.node.throttle import Throttle
from zmqps.errors import KeyRefusedError
from zmqps.keys.keyring import Keys
from zmqps.net.connections import Address, Credentials, receive

#: After this many broken handshakes in a row the other end has another key; one may be a node that is ending.
MAX_BROKEN = 4
_AUTH, _BROKEN = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH), int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
#: The monitor's events for failed handshakes.
FAILURES = _AUTH | _BROKEN | _PROTOCOL
WRONG_KEY = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
PROBE_S = 0.5
UNKNOWN_S = 0.5
#: The first bytes of ZMTP's greeting, up to its version: enough to make the other end send all of its own.
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
#: The position of the mechanism in it. The rest is left unread, which ends the connection as `leave_quietly` does.
_MECHANISM = slice(12, 32)
MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)

NEEDS_A_KEY = (
    "it refuses peers without a key; give this process a token (ZMQPS_TOKEN, zmqps.Security(token=...)) or a directory "
    "of keys (--keys DIR, ZMQPS_KEYS)"
)
HAS_NO_KEYS = "it was started without keys, and this one has some; start it with --keys DIR, or give this one none"
NOT_KNOWN = (
    "its key is unknown, expired or revoked; the node's log says which, and the cluster's owner "
    "can make a new token with zmqps keys token"
)
ANOTHER_CLUSTER = (
    "its key is not the one in this process's keys: these are of another cluster, or the cluster's key was changed; "
    "get a new token, or the new keys"
)

#: Whether this end has keys, and the mechanism of the other one -> why they break off each handshake.
WHY = {(False, "CURVE"): NEEDS_A_KEY, (True, "NULL"): HAS_NO_KEYS, (True, "CURVE"): ANOTHER_CLUSTER}


class RefusalLog:
    """Log lines about peers with failed handshakes: one per host in some seconds.

    libzmq reports the reason, then which connection has ended. It may have been too short to know its peer. Then a line
    waits for that peer's next attempt.

    Parameters
    ----------
    keyed
        Whether connections must show a key.
    """

    def __init__(self, *, keyed: bool) -> None:
        self._keyed = keyed
        self._throttle = Throttle("connections that were refused", most=1)
        self._why = ""  # of the next connection to end
        self._unknown: tuple[str, float] | None = None  # the reason, and until when to wait for the peer

    def failed(self, kind: int, value: int) -> None:
        """Process a failed handshake."""
        self._why = self._judge(kind, value)

    def ended(self, address: Credentials | Address | None, now: float) -> str | None:
        """Return the line about an ended connection, if any."""
        why, self._why = self._why, ""
        if not why:
            return None
        if address is None:
            self._unknown = self._unknown or (why, now + UNKNOWN_S)
            return None
        self._unknown = None
        return self._throttle.admit(f"refused a connection {address}: {why}", now, address[0])

    def overdue(self, now: float) -> str | None:
        """Return the line about an unidentified peer that has not come back."""
        if self._unknown is None or now < self._unknown[1]:
            return None
        (why, _), self._unknown = self._unknown, None
        return self._throttle.admit(f"refused a connection that ended at once: {why}", now)

    def _judge(self, kind: int, value: int) -> str:
        if kind == _BROKEN and value == errno.ECONNRESET:
            return ""  # it has left before a node's first message: a probe, or a killed process
        if not self._keyed:
            return "it has keys, and this node has none" if kind == _PROTOCOL and value == MISMATCH else ""
        if kind == _PROTOCOL and value == WRONG_KEY:
            return (
                "it looks for a node with another key: its keys are of another cluster, or older than this node's "
                "last change; or it repeats what another peer has sent"
            )
        return "it shows no key, and one is required"  # whichever end has noticed first


def mechanism_at(endpoint: str) -> str:
    """Return a node's mechanism from its greeting, ``CURVE`` or ``NULL``; blocks for a second at most.

    If two ends do not agree, the slower one to read the other's greeting only finds the connection closed. This
    function reads the greeting for it. Empty: no answer.
    """
    scheme, _, place = endpoint.partition("://")
    try:
        with socket.socket(socket.AF_UNIX) if scheme == "ipc" else _connected(place) as connection:
            connection.settimeout(PROBE_S)
            if scheme == "ipc":
                connection.connect("\0" + place[1:] if place.startswith("@") else place)
            connection.sendall(_GREETING)
            greeting = receive(connection, _MECHANISM.stop, time.monotonic() + PROBE_S)
    except (OSError, ValueError):
        return ""
    return greeting[_MECHANISM].rstrip(b"\0").decode(errors="replace")


def _connected(place: str) -> socket.socket:
    host, _, port = place.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), PROBE_S)


class Refusals:
    """The meaning of a DEALER's failed handshakes.

    Parameters
    ----------
    endpoint, role
        The endpoint and the role, for the error.
    keys
        The keys it shows, and by which it identifies the other end.
    """

    def __init__(self, endpoint: str, role: str, keys: Keys | None) -> None:
        self.keys = keys
        self._endpoint, self._role = endpoint, role
        self._num_broken = 0
        # whether keys may be why handshakes break off: `mechanism_at` finds out
        self._doubtful = False
        self._found: KeyRefusedError | None = None

    def succeeded(self) -> None:
        """A handshake has succeeded."""
        self._num_broken = 0

    def failed(self, kind: int, value: int) -> None:
        """A handshake has failed, as the monitor reports."""
        if kind == _AUTH:
            self._refused(NOT_KNOWN)
        elif kind == _PROTOCOL and value == MISMATCH:
            self._refused(HAS_NO_KEYS if self.keys is not None else NEEDS_A_KEY)
        else:
            self._num_broken += 1
            self._doubtful = self._num_broken == (1 if self.keys is None else MAX_BROKEN)

    def take(self, again: Callable[[], None]) -> KeyRefusedError | None:
        """Return the permanent error, or call ``again`` once it is known.

        Runs in the thread of an asyncio loop.
        """
        error, self._found = self._found, None
        if self._doubtful and error is None:
            self._doubtful = False
            asking = asyncio.get_running_loop().run_in_executor(None, mechanism_at, self._endpoint)
            asking.add_done_callback(partial(self._settle, again))
        return error

    def _settle(self, again: Callable[[], None], asking: asyncio.Future[str]) -> None:
        why = WHY.get((self.keys is not None, "" if asking.cancelled() else asking.result()))
        if why is not None:
            self._refused(why)
            again()

    def _refused(self, why: str) -> None:
        self._found = KeyRefusedError(address=self._endpoint, role=self._role, why=why)
