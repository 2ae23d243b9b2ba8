"""Where a connection comes from, by what the kernel tells."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.net.system.test_addresses import needs_ipv6
from tests.tables import for_each
from zmqps.net.connections import Address, address_of, origin_of


@contextmanager
def accepted(family: int, host: str, target: str = "", source: str = "") -> Iterator[socket.socket]:
    """Yield the accepting end of a connection."""
    with socket.socket(family) as server, socket.socket(socket.AF_INET if "." in target else family) as client:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, 0))
        server.listen()
        if source:
            client.bind((source, 0))
        client.connect((target or host, server.getsockname()[1]))
        with server.accept()[0] as connection:
            yield connection


@for_each("host, source", [("127.0.0.1", ""), ("127.0.0.2", ""), ("127.0.0.1", "127.0.0.3")])
def test_what_comes_over_loopback_comes_from_this_host(host: str, source: str) -> None:
    with accepted(socket.AF_INET, host, source=source) as connection:
        assert origin_of(connection.fileno()) == ""


@needs_ipv6
def test_over_ipv6_too_and_ipv4_is_shown_as_itself() -> None:
    with accepted(socket.AF_INET6, "::1") as connection:
        assert origin_of(connection.fileno()) == ""
        assert address_of(connection)[0] == "::1"
    with accepted(socket.AF_INET6, "::", "127.0.0.1") as connection:
        assert origin_of(connection.fileno()) == ""
        address = address_of(connection)
        assert isinstance(address, Address)
        assert address.host == "127.0.0.1"


def test_a_socket_of_this_host_comes_from_it_and_one_that_has_ended_from_nowhere() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert origin_of(ours.fileno()) == ""
    with accepted(socket.AF_INET, "127.0.0.1") as connection:
        descriptor = connection.fileno()
        connection.close()  # as ZeroMQ does, while what came over it waits to be read
        assert origin_of(descriptor) is None
    assert origin_of(-1) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "origin"),
    [
        ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "10.0.0.1", ""),  # this host by its own address
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2"),
        ("fd00::1", "fd00::2", "fd00::2"),
    ],
)
def test_another_host_is_known_by_its_address(
    monkeypatch: pytest.MonkeyPatch, ours: str, theirs: str, origin: str
) -> None:
    class Connection(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            return ours, 1

        def getpeername(self) -> tuple[str, int]:
            return theirs, 2

    with socket.socket() as real:
        monkeypatch.setattr("zmqps.net.connections.socket.socket", Connection)
        assert origin_of(real.fileno()) == origin
