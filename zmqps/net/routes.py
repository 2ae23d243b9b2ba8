"""Which of a server's advertised endpoints to use, and whether it is on this host.

A server advertises its endpoints separated by spaces: the one it was configured to bind, and one in Linux's abstract
socket namespace (``ipc://@…``), which leaves no file behind. That one can only be reached from this host, so a peer
that can connect to it is on this host.
"""

from __future__ import annotations

import os
import resource
import secrets
import socket
import struct
import sys
from typing import NamedTuple

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.net.connections import leave_quietly

TRANSPORTS = ("auto", "tcp", "ipc", "shm")
#: Below this descriptor limit ipc is not used.
MIN_DESCRIPTORS = 512


class Route(NamedTuple):
    """A connection to make; ``shared``: offer to move payloads through shared memory."""

    endpoint: str
    shared: bool


def check_transport(transport: str) -> str:
    """Raise `ConfigurationError` unless there is such a transport."""
    return checks.one_of("transport", transport, TRANSPORTS)


def choose(advertised: str, transport: str) -> Route:
    """Return how to connect to a server.

    Parameters
    ----------
    advertised
        Its endpoints.
    transport
        One of `TRANSPORTS`. ``auto``: shared memory on one host, TCP beyond.

    Raises
    ------
    ConfigurationError
        It cannot be reached this way; says why.
    """
    endpoints = advertised.split()
    local = next((endpoint for endpoint in endpoints if is_reachable_locally(endpoint)), None)
    remote = next((endpoint for endpoint in endpoints if not endpoint.startswith("ipc://")), None)
    if transport == "ipc" and local is None:
        raise ConfigurationError(
            f"transport='ipc', but the server at {advertised} has no socket on this host that serves this user"
        )
    if transport == "tcp" and remote is None:
        raise ConfigurationError(f"transport='tcp', but the server is reached at {advertised} only")
    endpoint = remote if transport == "tcp" else local or remote
    if endpoint is None:
        raise ConfigurationError(f"the server at {advertised} cannot be reached from this host")
    # on request it is offered even if the sockets of one host do not see each other
    return Route(endpoint, transport == "shm" or (transport == "auto" and endpoint == local))


def is_reachable_locally(endpoint: str) -> bool:
    """Whether an ``ipc://`` endpoint has a listener that serves this user.

    A node's door shuts peers that are neither of the node's user nor root; they are served by TCP.
    """
    scheme, _, path = endpoint.partition("://")
    if scheme != "ipc":
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect("\0" + path[1:] if path.startswith("@") else path)
        except BlockingIOError:
            pass  # others are queued before us
        except (OSError, ValueError):
            return False
        else:
            leave_quietly(probe)
            return os.geteuid() in (0, _listener(probe))
    return True


def _listener(connected: socket.socket) -> int:
    """Return the user of the listener at the other end, this one if the system does not know."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return os.geteuid()
    credentials = struct.Struct("3i")  # process, user, group
    _, user, _ = credentials.unpack(connected.getsockopt(socket.SOL_SOCKET, option, credentials.size))
    return int(user)


def new_local_endpoint() -> str:
    """Return an ipc endpoint to bind in addition to a TCP one.

    Nothing if the system has none without files, or few descriptors: libzmq 4.3.5 ends the process if it has none left
    to accept a connection over ipc, while over TCP it reports it.
    """
    if sys.platform != "linux":
        return ""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return "" if 0 <= limit < MIN_DESCRIPTORS else f"ipc://@zmqps-{secrets.token_hex(16)}"
