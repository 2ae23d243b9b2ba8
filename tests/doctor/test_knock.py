"""Who listens and who knocks: each way it can fail, on loopback."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from tests.pace import allow
from zmqps.doctor import knock as knocking
from zmqps.doctor.knock import MAX_KNOCKS, Listener, knock

TOKEN = b"t" * 32


@pytest.fixture
def listener():
    found = Listener("127.0.0.1", 0, TOKEN)
    yield found
    found.close()


def test_the_one_that_was_meant_answers(listener) -> None:
    reach = knock("a", "b", "127.0.0.1", listener.port, TOKEN, 2.0)
    assert (reach.source, reach.target, reach.problem) == ("a", "b", "")
    assert (reach.near, reach.far) == ("127.0.0.1", "127.0.0.1")
    assert 0 < reach.latency_s < 1.0


def test_a_listener_on_all_addresses_is_reached_at_each() -> None:
    everywhere = Listener("", 0, TOKEN)
    try:
        assert knock("a", "b", "127.0.0.2", everywhere.port, TOKEN, 2.0).problem == ""
        if socket.has_dualstack_ipv6():
            assert knock("a", "b", "::1", everywhere.port, TOKEN, 2.0).problem == ""
    finally:
        everywhere.close()


def test_a_closed_port_is_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert knock("a", "b", "127.0.0.1", bound.getsockname()[1], TOKEN, 2.0).problem == "refused"


def test_another_listener_is_a_stranger(listener) -> None:
    assert knock("a", "b", "127.0.0.1", listener.port, b"x" * 32, 2.0).problem == "stranger"


def test_who_accepts_and_says_nothing_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert knock("a", "b", "127.0.0.1", mute.getsockname()[1], TOKEN, 0.1).problem == "silent"


def test_who_echoes_is_not_taken_for_the_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(32))

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        assert knock("a", "b", "127.0.0.1", server.getsockname()[1], TOKEN, 2.0).problem == "stranger"
        thread.join()


def test_a_node_that_runs_is_only_connected_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as node:
        assert knock("a", "b", "127.0.0.1", node.getsockname()[1], b"", 2.0).problem == ""


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("too long")])
def test_a_name_that_leads_nowhere_is_unresolved(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert knock("a", "b", "host", 1, TOKEN, 1.0).problem == "unresolved"


@pytest.mark.parametrize(
    ("number", "problem"), [(errno.EHOSTUNREACH, "no route"), (errno.EMFILE, "Too many open files")]
)
def test_what_the_system_says_is_told(number: int, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_connection", fail)
    assert knock("a", "b", "host", 1, TOKEN, 1.0).problem == problem


def trickle(peer: socket.socket, ends_at: float) -> bool:
    """Send a byte now and then until the other end hangs up; false if it does not."""
    peer.settimeout(0.02)
    while time.monotonic() < ends_at:
        try:
            peer.sendall(b"t")
            if not peer.recv(1):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_who_knocks_slowly_is_hung_up_on_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knocking, "PATIENCE_S", 0.2)
    slow = Listener("127.0.0.1", 0, b"u" * 4096)
    monkeypatch.setattr(knocking, "TOKEN_NBYTES", 4096)
    try:
        with socket.create_connection(("127.0.0.1", slow.port)) as peer:
            assert trickle(peer, time.monotonic() + allow(10))
    finally:
        slow.close()


def test_strangers_that_hold_all_places_shut_out_nobody_who_was_meant(listener) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_KNOCKS):
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port))).sendall(b"t")
        for _ in range(3):
            assert knock("a", "b", "127.0.0.1", listener.port, TOKEN, allow(2.0)).problem == ""


def test_a_stranger_that_answers_a_byte_now_and_then_is_silent_when_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while not over.wait(0.05):
                    connection.sendall(b"t")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        assert knock("a", "b", "127.0.0.1", server.getsockname()[1], TOKEN, 0.2).problem == "silent"
        over.set()
        thread.join()
