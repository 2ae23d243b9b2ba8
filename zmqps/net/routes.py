"""Which of a server's advertised endpoints to use, whether it is on this host, and why none answers.

A server advertises its endpoints separated by spaces: the one it was configured to bind, and one in Linux's abstract
socket namespace (``ipc://@…``), which leaves no file behind. That one can only be reached from this host, so a peer
that can connect to it is on this host.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import socket
import struct
import sys
from typing import NamedTuple

from zmqps import checks
from zmqps.errors import ConfigurationError, UnresolvedNameError
from zmqps.net.connections import leave_quietly
from zmqps.net.system.addresses import family_of, resolve, split

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


#: Less than three seconds in total: the caller has waited for two, and a report is due within five.
RESOLVE_TIMEOUT = 1.5
CONNECT_TIMEOUT = 1.0
#: A name may have many addresses; this many are tried.
MOST_ADDRESSES = 2


def why_silent(advertised: str) -> str:
    """Return in words why a peer does not answer; blocks for seconds.

    Parameters
    ----------
    advertised
        Its endpoints, separated by spaces.
    """
    endpoints = advertised.split()
    remote = next((endpoint for endpoint in endpoints if not endpoint.startswith("ipc://")), None)
    if remote is None:
        here = any(map(is_reachable_locally, endpoints))
        return "a process listens there, but does not answer" if here else "no process listens there on this host"
    try:
        host, port = split(remote)
        addresses = resolve(host, RESOLVE_TIMEOUT)
    except UnresolvedNameError as error:
        return f"the name {error.name!r} does not resolve on {error.host} ({error.why})"
    except ConfigurationError as error:
        return str(error)
    answers = [_answer(address, port) for address in addresses[:MOST_ADDRESSES]]
    if len(addresses) == 1 and addresses[0] == host:
        return answers[0]
    return "; ".join(f"{address}: {answer}" for address, answer in zip(addresses, answers, strict=False))


def _answer(address: str, port: int) -> str:
    try:
        with socket.socket(family_of(address)) as probe:
            probe.settimeout(CONNECT_TIMEOUT)
            probe.connect((address, port))
            ours, theirs = probe.getsockname(), probe.getpeername()
            leave_quietly(probe)
    except TimeoutError:
        return "that host sends no answer: it is off, or a firewall drops what is sent to this port"
    except ConnectionRefusedError:
        return "no process listens at that port (connection refused)"
    except OSError as error:
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM):
            return f"there is no way to that host, or a firewall refuses it ({os.strerror(error.errno).lower()})"
        return str(error.strerror or error).lower()
    if ours == theirs:  # a free port that the system has given to this very connection
        return "no process listens at that port"
    return "a process takes connections there, but does not answer: it is busy, or it is not a node of this cluster"
