"""Which endpoint of a server a worker takes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from zmqps.errors import ConfigurationError
from zmqps.net.routes import Route, choose, new_local_endpoint

TCP = "tcp://127.0.0.1:5571"


@pytest.fixture
def local() -> Iterator[str]:
    """An endpoint of this host that a process of this user listens at."""
    endpoint = new_local_endpoint()
    if not endpoint:
        pytest.skip("no abstract sockets here")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + endpoint.removeprefix("ipc://@"))
        listener.listen()
        yield endpoint


@pytest.mark.parametrize(
    ("user", "reaches"),
    [(os.geteuid(), True), (0, True), (os.geteuid() + 4321, False)],
    ids=["the server's", "root", "another"],
)
def test_a_local_socket_is_for_its_own_user_and_root(monkeypatch, local, user, reaches) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert choose(f"{TCP} {local}", "auto") == (Route(local, True) if reaches else Route(TCP, False))


def test_another_user_who_insists_on_it_is_told(monkeypatch, local) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(ConfigurationError, match="no socket on this host that serves this user"):
        choose(f"{TCP} {local}", "ipc")


def test_a_socket_that_nobody_listens_at_is_none() -> None:
    assert choose(f"{TCP} ipc://@zmqps-nobody", "auto") == Route(TCP, False)
