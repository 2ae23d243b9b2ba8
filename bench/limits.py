"""What the machine can do at best: plain sockets and plain memory copies moving the same bytes."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from bench.children import TIMEOUT, Child, call_all

#: Of the sizes tried (default to 16 MiB) the fastest: what is in flight stays in the cache.
SOCKET_NBYTES = 256 << 10
RECEIVE_NBYTES = 4 << 20
#: The server's end receives into the same memory again and again, as one may that applies a gradient
#: when it has come: a sixth less processor time than a place of its own for every byte.
REUSED_NBYTES = 1 << 20
LOOPBACK = "127.0.0.1"
#: What surely fits into the socket's buffer is sent without a thread.
SMALL_NBYTES = 64 << 10


def _tune(connection: socket.socket, *, buffers: bool) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF) if buffers else ():
        connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_NBYTES)
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _receive(connection: socket.socket, into: memoryview) -> None:
    at = 0
    while at < len(into):
        count = connection.recv_into(into[at : at + RECEIVE_NBYTES])
        if not count:
            raise EOFError
        at += count


def _drain(connection: socket.socket, nbytes: int, buffer: memoryview) -> None:
    while nbytes:
        count = connection.recv_into(buffer[: min(nbytes, len(buffer))])
        if not count:
            raise EOFError
        nbytes -= count


class SocketServer:
    """One end of plain connections: takes bytes and sends bytes at the same time.

    A step on a connection: one byte says go, then ``nbytes_in`` arrive while ``nbytes_out`` leave,
    and one byte says that all have arrived.

    Parameters
    ----------
    transport
        ``tcp``, or Unix sockets.
    nbytes_in, nbytes_out
        Of a step.
    host
        The address to listen at. Over a wire between hosts buffers are as large as the kernel makes them.
    """

    def __init__(self, transport: str, nbytes_in: int, nbytes_out: int, host: str = LOOPBACK) -> None:
        self._sizes = nbytes_in, nbytes_out
        self._buffers = host == LOOPBACK
        if transport == "tcp":
            self._listener = socket.create_server((host, 0))
        else:
            self._directory = tempfile.TemporaryDirectory(prefix="zmqps-bench-")
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(Path(self._directory.name) / "limit"))
            self._listener.listen()
        _tune(self._listener, buffers=self._buffers)
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self) -> str | tuple[str, int]:
        """Where to connect to."""
        name: str | tuple[str, int] = self._listener.getsockname()
        return name

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        _tune(connection, buffers=self._buffers)
        nbytes_in, nbytes_out = self._sizes
        outgoing = memoryview(np.ones(nbytes_out, np.uint8))
        buffer = memoryview(np.ones(REUSED_NBYTES, np.uint8))
        go = memoryview(bytearray(1))
        with ThreadPoolExecutor(1) as sender, connection:
            while True:
                try:
                    _receive(connection, go)
                    if len(outgoing) <= SMALL_NBYTES:
                        connection.sendall(outgoing)
                        _drain(connection, nbytes_in, buffer)
                    else:
                        sent = sender.submit(connection.sendall, outgoing)
                        _drain(connection, nbytes_in, buffer)
                        sent.result(TIMEOUT)
                    connection.sendall(go)
                except (EOFError, OSError):
                    return  # the client has gone


class SocketClient:
    """The other end: connected to each of several servers."""

    def __init__(self, addresses: list[str | tuple[str, int]], nbytes_in: int, nbytes_out: int) -> None:
        self._connections = []
        for address in addresses:
            connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
            _tune(connection, buffers=isinstance(address, str) or address[0] == LOOPBACK)
            connection.connect(address)
            self._connections.append(connection)
        self._incoming = [memoryview(np.ones(nbytes_in, np.uint8)) for _ in addresses]
        self._outgoing = [memoryview(np.ones(nbytes_out, np.uint8)) for _ in addresses]
        self._threads = ThreadPoolExecutor(2 * len(addresses))

    def step(self) -> float:
        """Move the bytes both ways over all connections; return the seconds it took."""
        started = time.perf_counter()
        work = list(zip(self._connections, self._incoming, self._outgoing, strict=True))
        if len(self._outgoing[0]) <= SMALL_NBYTES:
            for connection, _, outgoing in work:
                self._send(connection, outgoing)
            for connection, incoming, _ in work:
                self._take(connection, incoming)
        else:
            futures = [self._threads.submit(self._send, connection, outgoing) for connection, _, outgoing in work]
            futures += [self._threads.submit(self._take, connection, incoming) for connection, incoming, _ in work]
            for future in futures:
                future.result(TIMEOUT)
        return time.perf_counter() - started

    def steps(self, count: int) -> list[float]:
        """Several steps at once, for those that are too short to be asked for one by one."""
        return [self.step() for _ in range(count)]

    @staticmethod
    def _send(connection: socket.socket, outgoing: memoryview) -> None:
        connection.sendall(b"g")
        connection.sendall(outgoing)

    @staticmethod
    def _take(connection: socket.socket, incoming: memoryview) -> None:
        _receive(connection, incoming)
        _receive(connection, memoryview(bytearray(1)))


class PlainSockets:
    """Processes that move a step's bytes over plain sockets, each worker connected to each server.

    Parameters
    ----------
    transport
        ``tcp``; all others stay on one host, where Unix sockets are the fastest.
    servers, workers
        How many of each.
    pushed, pulled
        Bytes that a worker sends and receives in a step.
    """

    def __init__(self, transport: str, servers: int, workers: int, pushed: int, pulled: int) -> None:
        out, back = pushed // servers, pulled // servers
        with ExitStack() as stack:
            served = [stack.enter_context(Child(SocketServer, transport, out, back)) for _ in range(servers)]
            for child in served:
                child.result()
            addresses = call_all(served, "address")
            self._clients = [stack.enter_context(Child(SocketClient, addresses, back, out)) for _ in range(workers)]
            for child in self._clients:
                child.result()
            self.pids = [child.pid for child in served + self._clients]
            self._stack = stack.pop_all()

    def steps(self, count: int) -> list[float]:
        """Return the seconds that each worker took for each of so many steps."""
        return [seconds for times in call_all(self._clients, "steps", count) for seconds in times]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()


class Copy:
    """A copy of so many bytes from memory to memory."""

    def __init__(self, nbytes: int) -> None:
        self._source, self._target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def step(self) -> float:
        """Return the seconds one copy takes."""
        started = time.perf_counter()
        np.copyto(self._target, self._source)
        return time.perf_counter() - started
