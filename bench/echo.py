"""What ZeroMQ itself takes for a small message there and back, between the kinds of ends that zmqps has."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import zmq

from bench.children import TIMEOUT, Child

#: Every message has this many bytes before its payload: about as long as the header of a small push.
HEADER_NBYTES = 64


class EchoServer:
    """A ROUTER in an asyncio loop that wakes when something can be read, takes all there is, and sends it back."""

    def __init__(self) -> None:
        ready = threading.Event()
        self._address = ""
        threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True).start()
        ready.wait(TIMEOUT)

    def address(self) -> str:
        """Where to connect to."""
        return self._address

    async def _run(self, ready: threading.Event) -> None:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        self._address = f"tcp://127.0.0.1:{port}"

        def echo() -> None:
            while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator]
                socket.send_multipart(socket.recv_multipart(zmq.NOBLOCK, copy=False), copy=False)

        asyncio.get_running_loop().add_reader(socket.getsockopt(zmq.FD), echo)
        echo()
        ready.set()
        await asyncio.Event().wait()  # until the process ends


class EchoClient:
    """A DEALER that sends a header and a payload, and blocks until both are back."""

    def __init__(self, address: str, nbytes: int) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(1000 * TIMEOUT))
        self._socket.connect(address)
        self._frames = [bytes(HEADER_NBYTES), bytes(nbytes)]

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each of so many round trips."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._socket.send_multipart(self._frames, copy=False)
            self._socket.recv_multipart(copy=False)
            seconds.append(time.perf_counter() - started)
        return seconds


class ZmqEcho:
    """Two processes that do no more than that.

    Parameters
    ----------
    nbytes
        Of the payload, each way.
    """

    def __init__(self, nbytes: int) -> None:
        with ExitStack() as stack:
            server = stack.enter_context(Child(EchoServer))
            server.result()
            self._client = stack.enter_context(Child(EchoClient, server.call("address"), nbytes))
            self._client.result()
            self.pids = [server.pid, self._client.pid]
            self._stack = stack.pop_all()

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each of so many round trips."""
        found: list[float] = self._client.call("steps", count)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()
