"""The HTTP server beside strangers who connect and say nothing, or ask and do not read."""

from __future__ import annotations

import builtins
import contextlib
import http.client
import logging
import select
import socket
import threading
import time
from typing import Any

import pytest

from tests.logged import logged
from tests.page.asked import PATIENCE, Asked, connected, get, live, served
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.page.app import url_of
from zmqps.web import server
from zmqps.web.server import MAX_CONNECTIONS, listen


def is_shut(peer: socket.socket, said: bytes = b"") -> bool:
    """Say something, and wait until the server has ended the connection; false: it has sent something before."""
    try:
        peer.sendall(said)
        return peer.recv(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


REQUEST = b"GET /now.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_beyond_the_limit_the_connection_that_has_asked_nothing_for_longest_is_shut_and_a_browser_is_served() -> None:
    with served(Asked(live())) as (port, _), contextlib.ExitStack() as stack:
        browser = stack.enter_context(connected(port))
        slow = []
        for number in range(3 * MAX_CONNECTIONS):
            slow.append(stack.enter_context(connected(port)))
            slow[-1].sendall(b"GET /now")
            if number % 16 == 0:  # as a browser asks every second, on a connection that it has had for long
                assert answered(browser)
        assert get(port, "/now.json")[0] == 200
        assert is_shut(slow[0])


def answered(peer: socket.socket) -> bool:
    """Ask, and whether there is an answer; the next one may follow on the same connection."""
    peer.sendall(REQUEST)
    answer = http.client.HTTPResponse(peer)
    answer.begin()
    answer.read()
    return answer.status == 200


def test_who_says_nothing_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.05)
    monkeypatch.setattr(server, "LOOK_S", 0.05)
    with served(Asked(live())) as (port, _):
        for said in (b"", b"GET /now.json HTTP/1.1\r\nHost: local"):
            with connected(port) as peer:
                assert is_shut(peer, said)


def test_who_sends_a_byte_now_and_then_is_shut_as_is_who_reads_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.3)
    monkeypatch.setattr(server, "ANSWER_S", 0.6)
    monkeypatch.setattr(server, "LOOK_S", 0.05)
    with served(Asked(live(host="x" * 15_000_000))) as (port, _):
        for said, more in ((b"", b"G"), (REQUEST, b"")):
            with connected(port, receive_nbytes=4096) as peer:
                peer.sendall(said)
                peer.settimeout(0.02)
                began = time.monotonic()
                while time.monotonic() - began < PATIENCE:
                    try:
                        peer.sendall(more)
                        if not peer.recv(1):
                            break
                        threading.Event().wait(0.02)
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        break
                else:
                    pytest.fail("it is still served")


def test_who_does_not_read_its_answer_is_shut_and_others_are_served_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.3)
    monkeypatch.setattr(server, "LOOK_S", 0.05)
    with served(Asked(live(host="x" * 15_000_000))) as (port, _):
        with connected(port, receive_nbytes=4096) as peer:
            peer.sendall(REQUEST)
            assert get(port, "/")[0] == 200
            poll = select.poll()
            poll.register(peer, 0)  # an error is told without being asked for
            assert [events & select.POLLERR for _, events in poll.poll(1000 * PATIENCE)] == [select.POLLERR]


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"A" * 20_000, b"GET / HTTP/1.1\r\n" * 3 + b"\r\n"]
)
def test_garbage_is_answered_with_an_error_and_fills_no_log(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), served(Asked(live())) as (port, _):
        with connected(port) as peer:
            peer.sendall(garbage)
            try:
                assert peer.recv(100).startswith(b"HTTP/1.1 4")
            except ConnectionResetError:
                pass  # it has not read all of it
        assert get(port, "/now.json")[0] == 200
    assert [record for record in logged(caplog) if record.levelno >= logging.WARNING] == []


def test_it_ends_with_its_context_and_its_port_is_free_again() -> None:
    before = set(threading.enumerate())
    with served(Asked(live())) as (port, _), connected(port) as peer:
        peer.sendall(REQUEST)
        assert peer.recv(9) == b"HTTP/1.1 "
    assert [t.name for t in set(threading.enumerate()) - before if t.name.startswith("zmqps-web")] == []
    listen("127.0.0.1", port, "the page").close()


def test_a_port_that_somebody_has_is_named_with_its_owner() -> None:
    with listen("127.0.0.1", 0, "the page") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"port {port} is in use by"):
            listen("127.0.0.1", port, "the page")


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen at 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0, "the page")


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "uvicorn":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[watch\]'"):
        listen("127.0.0.1", 0, "the page")


def test_addresses_are_ones_to_open_in_a_browser() -> None:
    assert url_of("127.0.0.1", 80, "") == "http://127.0.0.1:80/"
    assert url_of("fd00::1", 80, "ab") == "http://[fd00::1]:80/?token=ab"
