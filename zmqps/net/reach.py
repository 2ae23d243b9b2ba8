"""Why an endpoint does not answer: the result of a plain connection. ZeroMQ itself retries silently."""

from __future__ import annotations

import errno
import os
import socket

from zmqps.errors import ConfigurationError, UnresolvedNameError
from zmqps.net.connections import leave_quietly
from zmqps.net.routes import is_reachable_locally
from zmqps.net.system.addresses import family_of, resolve, split

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
    return "a process takes connections there, but does not answer: it is busy, or it is no node of this cluster"
