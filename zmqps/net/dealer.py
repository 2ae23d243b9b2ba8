"""The sockets of connections that this node opens: one DEALER for each."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import zmq

from zmqps.errors import ConfigurationError
from zmqps.net.sockets import limit_frames

#: Random bytes of a routing id.
ROUTING_NBYTES = 16


def new_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, prepare: Callable[[zmq.Socket[bytes]], None]
) -> zmq.Socket[bytes]:
    """Return a socket whose connection is made in the background, and comes back by itself when it breaks.

    ``prepare`` is called with it before it connects.

    Raises
    ------
    ConfigurationError
        The endpoint is invalid.
    """
    dealer = context.socket(zmq.DEALER)
    # nobody can know it, and so take this connection over; nor are two the same, which would starve each other
    dealer.setsockopt(zmq.IDENTITY, b"z" + secrets.token_bytes(ROUTING_NBYTES))
    dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues up for a peer that is not there
    dealer.setsockopt(zmq.PROBE_ROUTER, 1)  # an empty message tells who has come back
    dealer.setsockopt(zmq.RECONNECT_IVL, 50)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    limit_frames(dealer)
    try:
        prepare(dealer)
        dealer.connect(endpoint)
    except zmq.ZMQError as error:
        dealer.close(0)
        raise ConfigurationError(f"cannot connect to {endpoint!r}: {error}") from None
    except BaseException:
        dealer.close(0)
        raise
    return dealer
