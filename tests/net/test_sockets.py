"""Sockets that are bound and connected where an endpoint says: IPv4, IPv6, names, all addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from tests.net.system.test_addresses import needs_ipv6
from tests.pace import allow
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.net.dealer import Dealer
from zmqps.net.sockets import bind_socket
from zmqps.net.system.addresses import join, split
from zmqps.net.system.memory import keep_freed_memory

PATIENCE_MS = int(allow(20_000))


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(0)


@pytest.fixture
def routers(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[list[zmq.Socket[bytes]]]:
    sockets = [context.socket(zmq.ROUTER) for _ in range(2)]
    yield sockets
    for socket in sockets:
        socket.close(0)


def talk(context: zmq.Context[zmq.Socket[bytes]], bind: str, host: str) -> str:
    """Send a message from a DEALER to what was bound; return that."""
    router = context.socket(zmq.ROUTER)
    bound = bind_socket(router, bind)
    connection = Dealer(context, b"server", join(host, split(bound)[1]), "worker", None)
    dealer = connection.socket
    assert dealer.poll(PATIENCE_MS, zmq.POLLOUT)
    dealer.send(b"hello")
    assert router.poll(PATIENCE_MS)
    connection.close(0)
    router.close(0)
    return bound


@pytest.mark.parametrize(
    ("bind", "host", "bound"),
    [
        ("tcp://127.0.0.1:0", "127.0.0.1", "127.0.0.1"),
        ("tcp://127.0.0.2:0", "127.0.0.2", "127.0.0.2"),
        ("tcp://0.0.0.0:0", "127.0.0.1", "0.0.0.0"),
        ("tcp://localhost:0", "127.0.0.1", "127.0.0.1"),
        ("tcp://lo:0", "127.0.0.1", "127.0.0.1"),
        pytest.param("tcp://[::1]:0", "::1", "::1", marks=needs_ipv6),
        pytest.param("tcp://[::]:0", "::1", "::", marks=needs_ipv6),
        pytest.param("tcp://[::]:0", "127.0.0.1", "::", marks=needs_ipv6),
    ],
)
def test_what_is_bound_can_be_connected_to(
    context: zmq.Context[zmq.Socket[bytes]], bind: str, host: str, bound: str
) -> None:
    assert split(talk(context, bind, host))[0] == bound


@needs_ipv6
def test_one_socket_takes_both(routers: list[zmq.Socket[bytes]]) -> None:
    for bind in ("tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://127.0.0.1:0"):
        assert split(bind_socket(routers[0], bind))[0] == split(bind)[0]


def test_an_address_of_another_host_is_refused_with_those_of_this_one(
    routers: list[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqps.net.sockets.usable_addresses", lambda: ["10.0.0.2"])
    with pytest.raises(ConfigurationError, match=r"192.0.2.1 is not an address of this host, which has 10.0.0.2"):
        bind_socket(routers[0], "tcp://192.0.2.1:0")


@needs_ipv6
def test_a_port_that_is_taken_is_named_over_ipv6_too(routers: list[zmq.Socket[bytes]]) -> None:
    bound = bind_socket(routers[0], "tcp://[::1]:0")
    with pytest.raises(AddressInUseError) as caught:
        bind_socket(routers[1], bound)
    assert caught.value.port == split(bound)[1]


#: Receives 80 MB by two I/O threads and frees it; prints how many MB that were, and how many are kept.
RECEIVED = """
import sys, psutil, zmq
from zmqps.net.system.memory import give_back_freed_memory, keep_freed_memory, let_freed_memory_go
from zmqps.net.sockets import free_in_io_threads
assert keep_freed_memory()
rss = lambda: psutil.Process().memory_info().rss / 1e6
context, other = zmq.Context(io_threads=2), zmq.Context()
pulls, pushes = [], []
for number in range(2):
    pulls.append(context.socket(zmq.PULL))
    pulls[-1].affinity = 1 << number
    pulls[-1].bind("ipc://@zmqps-test-" + sys.argv[1] + str(number))
    pushes.append(other.socket(zmq.PUSH))
    pushes[-1].connect(pulls[-1].LAST_ENDPOINT.decode())
for pull, push in zip(pulls, pushes):  # once, for what the first message takes
    push.send(b"x" * 400_000)
    pull.recv(copy=False)
before = rss()
for push in pushes:
    for _ in range(100):
        push.send(b"x" * 400_000, copy=False)
frames = [pull.recv(copy=False) for pull in pulls for _ in range(100)]
most = rss()
del frames
let_freed_memory_go()
give_back_freed_memory()
free_in_io_threads(context)
print(most - before, rss() - before)
context.destroy(0)
other.destroy(0)
"""


def test_what_io_threads_have_received_goes_back_to_the_system() -> None:
    if not keep_freed_memory():
        pytest.skip("not glibc")
    command = [sys.executable, "-c", RECEIVED, str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=allow(60))
    received, kept = map(float, done.stdout.split())
    assert received > 40
    assert kept < 10
