"""The sockets of connections that this node opens: one DEALER for each."""

from __future__ import annotations

import secrets
from typing import Any

import zmq

from zmqps.errors import ConfigurationError
from zmqps.net.curve import secure_dealer
from zmqps.net.keyring import Keys
from zmqps.net.refusals import Refusals
from zmqps.net.sockets import limit_frames

#: Random bytes of a routing id.
ROUTING_NBYTES = 16


def new_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, role: str, keys: Keys | None = None, identity: Any = b""
) -> tuple[zmq.Socket[bytes], Refusals]:
    """Return a socket whose connection is made in the background, and comes back by itself when it breaks.

    Parameters
    ----------
    context
        Of the socket.
    endpoint
        Where it connects.
    role, keys
        Whose key it shows; None: it shows none.
    identity
        By which the other end knows this one already.

    Returns
    -------
    tuple
        The socket, and what tells of handshakes that fail for good; that is to be closed first.

    Raises
    ------
    ConfigurationError
        The endpoint is invalid, or the keys are for others.
    """
    dealer = context.socket(zmq.DEALER)
    # nobody can know it, and so take this connection over; nor are two the same, which would starve each other
    dealer.setsockopt(zmq.IDENTITY, identity or b"z" + secrets.token_bytes(ROUTING_NBYTES))
    dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues up for a peer that is not there
    dealer.setsockopt(zmq.PROBE_ROUTER, 1)  # an empty message tells who has come back
    dealer.setsockopt(zmq.RECONNECT_IVL, 50)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    limit_frames(dealer)
    refusals = Refusals(dealer, endpoint, role, keys)
    try:
        if keys is not None:
            secure_dealer(dealer, keys, role)
        dealer.connect(endpoint)
    except (zmq.ZMQError, ConfigurationError) as error:
        refusals.close()
        dealer.close(0)
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"cannot connect to {endpoint!r}: {error}") from None
    return dealer, refusals
