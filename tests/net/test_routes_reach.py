"""Why nobody answers: what a plain connection meets, in words."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ports import free_port
from zmqps.errors import UnresolvedNameError
from zmqps.net import routes
from zmqps.net.routes import why_silent
from zmqps.net.system.addresses import join


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_where_somebody_listens_that_does_not_answer(listener: socket.socket) -> None:
    endpoint = join(*listener.getsockname()[:2])
    assert "a process takes connections there" in why_silent(f"{endpoint} ipc://@zmqps-gone")


def test_where_nobody_listens() -> None:
    assert why_silent(join("127.0.0.1", free_port())) == "no process listens at that port (connection refused)"


def test_a_socket_of_this_host() -> None:
    name = f"zmqps-test-{secrets.token_hex(8)}"
    assert why_silent(f"ipc://@{name}") == "no process listens there on this host"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        assert why_silent(f"ipc://@{name}") == "a process listens there, but does not answer"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "that host sends no answer: it is off, or a firewall drops"),
        (OSError(errno.EHOSTUNREACH, ""), "there is no way to that host, or a firewall refuses it (no route to host)"),
        (OSError(errno.ENETUNREACH, ""), "(network is unreachable)"),
        (OSError(errno.EINVAL, "Odd"), "odd"),
    ],
)
def test_what_the_network_says(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    def connect(*_: Any) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "connect", connect)
    assert text in why_silent("tcp://10.9.9.9:1")


def test_a_name_that_does_not_resolve_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, timeout: float) -> list[str]:
        raise UnresolvedNameError(name=name, host="here", why="Name or service not known")

    monkeypatch.setattr(routes, "resolve", resolve)
    why = why_silent("tcp://node-b:5571 ipc://@x")
    assert why == "the name 'node-b' does not resolve on here (Name or service not known)"


def test_of_a_name_each_address_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "resolve", lambda name, timeout: ["127.0.0.1", "127.0.0.2"])
    why = why_silent(f"tcp://node-b:{free_port()}")
    assert why.startswith("127.0.0.1: no process listens at that port")
    assert "; 127.0.0.2: no process listens" in why


def test_what_is_no_endpoint_is_said_in_words() -> None:
    assert "write an IPv6 address in brackets" in why_silent("tcp://fd00::1:5570")
