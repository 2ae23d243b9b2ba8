"""What every process of a cluster has in common: an identity, an endpoint it may bind."""

from __future__ import annotations

import os
import socket
import uuid
from urllib.parse import urlsplit

from zmqps.core.node.member import Identity
from zmqps.core.protocol.hello import MAX_JOB_NAME_CHARS, is_job_name
from zmqps.errors import ConfigurationError

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def new_identity(
    role: str, *, name: str | None = None, endpoint: str = "", incarnation: bytes | None = None, job: str = ""
) -> Identity:
    """Return the identity of this life of this process; ``job`` is what a worker or observer is there for."""
    host = socket.gethostname()
    incarnation = incarnation or uuid.uuid4().bytes
    return Identity(role, incarnation, name or f"{role}-{host}-{os.getpid()}", host, os.getpid(), endpoint, job)


def check_bind(endpoint: str, *, insecure: bool) -> None:
    """Refuse to listen beyond this host unless told to: nothing is encrypted or authenticated yet.

    Raises
    ------
    ConfigurationError
        The endpoint is none, or reaches beyond loopback without ``insecure``.
    """
    check_endpoint(endpoint)
    if endpoint.startswith("tcp://") and urlsplit(endpoint).hostname not in LOOPBACK_HOSTS and not insecure:
        raise ConfigurationError(
            f"{endpoint} can be reached from other hosts, and this version neither encrypts nor authenticates; "
            "bind to 127.0.0.1, or pass --insecure on a network you trust"
        )


def check_name(what: str, name: object) -> str:
    """Return a name that can be sent and shown; raise `ConfigurationError` otherwise."""
    if isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable():
        return name
    raise ConfigurationError(f"{what} is a printable string of 1 to 200 characters, not {name!r:.60}")


def check_job_name(name: object) -> str:
    """Return the name of a job; raise `ConfigurationError` for what cannot be one."""
    if isinstance(name, str) and is_job_name(name):
        return name
    raise ConfigurationError(f"a job's name has 1 to {MAX_JOB_NAME_CHARS} printable characters, not {name!r:.60}")


def check_peer(endpoint: object) -> str:
    """Return an endpoint to connect to; raise `ConfigurationError` for one that can only be bound, or none."""
    if not isinstance(endpoint, str):
        raise ConfigurationError(f"{endpoint!r:.60} is no endpoint; write tcp://HOST:PORT or ipc://PATH")
    check_endpoint(endpoint)
    if endpoint.startswith("tcp://") and (urlsplit(endpoint).hostname in (None, "*") or not urlsplit(endpoint).port):
        raise ConfigurationError(f"{endpoint!r} cannot be connected to; write the coordinator's host and port")
    return endpoint


def check_endpoint(endpoint: str) -> None:
    """Raise `ConfigurationError` unless this is an endpoint such as ``tcp://127.0.0.1:5570``."""
    scheme, _, rest = endpoint.partition("://")
    try:
        if scheme == "tcp" and rest and urlsplit(endpoint).port is not None:
            return
    except ValueError:
        pass  # a port that is no number, or out of range
    if scheme == "ipc" and rest:
        return
    raise ConfigurationError(f"{endpoint!r} is no endpoint; write tcp://HOST:PORT or ipc://PATH")
