"""Ports of this host for tests that have to name one before anybody listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    """Return a port that was free just now."""
    with reserved_port() as port:
        return port


@contextmanager
def reserved_port() -> Iterator[int]:
    """Have a port that nobody listens at, and that nobody else is given; who is told of it may bind it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
