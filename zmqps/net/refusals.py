"""Handshakes that fail for good: libzmq says so to the monitor of a socket, and to nobody else.

A DEALER that was refused is silent ever after, and one that cannot agree with the other end tries again for ever.
"""

from __future__ import annotations

from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from zmqps.errors import KeyRefusedError
from zmqps.net.frames import readable
from zmqps.net.keyring import Keys

#: So many handshakes in a row that broke off tell that the other end has another key; one may be a node that ends.
MAX_BROKEN = 4
_AUTH, _BROKEN = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH), int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_PROTOCOL, _DONE = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
WRONG_KEY = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)

NEEDS_A_KEY = (
    "it takes nobody without a key; give this process a token (ZMQPS_TOKEN, zmqps.connect(token=...)) or a directory "
    "of keys (--keys DIR, ZMQPS_KEYS)"
)
HAS_NO_KEYS = "it was started without keys, and this one has some; start it with --keys DIR, or give this one none"
NOT_KNOWN = (
    "its key is not, or no longer, one that may come in; whoever runs the cluster sees why in the node's log, and "
    "makes a new token with zmqps keys token"
)
ANOTHER_CLUSTER = (
    "it has another key than this one's keys say: they are of another cluster, or the cluster's key was changed; get a "
    "new token, or the new keys"
)


def refusal(kind: int, value: int, *, keyed: bool) -> str:
    """Return why a node refuses somebody whose handshake has failed, for its log; empty: it is not about keys."""
    if not keyed:
        return "it has keys, and this node has none" if kind == _PROTOCOL and value == MISMATCH else ""
    if kind == _PROTOCOL and value == WRONG_KEY:
        return "it looks for a node with another key: its keys are of another cluster, or of before this one's changed"
    return "it shows no key, and nobody comes in without one"  # whichever end has noticed first


class Refusals:
    """Watches the handshakes of a DEALER.

    Parameters
    ----------
    dealer
        The socket, before it connects.
    endpoint, role
        Of what and by whom, for the error.
    keys
        What it shows, and knows the other end by.
    """

    def __init__(self, dealer: zmq.Socket[bytes], endpoint: str, role: str, keys: Keys | None) -> None:
        self.keys = keys
        self._dealer = dealer
        self._endpoint, self._role = endpoint, role
        self._num_broken = 0
        self.socket: zmq.Socket[Any] = dealer.get_monitor_socket(_AUTH | _BROKEN | _PROTOCOL | _DONE)
        self.socket.setsockopt(zmq.LINGER, 0)

    def take(self) -> KeyRefusedError | None:
        """Take all events that are there; return what is wrong for good."""
        error = None
        while readable(self.socket):
            event: Any = recv_monitor_message(self.socket)
            why = self._judge(int(event["event"]), int(event["value"]))
            if why:
                error = KeyRefusedError(address=self._endpoint, role=self._role, why=why)
        return error

    def _judge(self, kind: int, value: int) -> str:
        if kind == _DONE:
            self._num_broken = 0
        elif kind == _AUTH:
            return NOT_KNOWN
        elif kind == _PROTOCOL and value == MISMATCH:
            return HAS_NO_KEYS if self.keys is not None else NEEDS_A_KEY
        elif kind in (_BROKEN, _PROTOCOL) and self.keys is not None:
            self._num_broken += 1
            if self._num_broken == MAX_BROKEN:
                return ANOTHER_CLUSTER
        return ""

    def close(self) -> None:
        """Stop watching; before the socket is closed."""
        self._dealer.disable_monitor()
        self.socket.close(0)
