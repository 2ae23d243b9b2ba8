"""A slow link between sockets: so many bytes a second and no more; it can be held up, and its connections broken."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from tests.net.proxy import Proxy
from tests.pace import allow
from zmqps.core.protocol.events import COORDINATOR, Peer
from zmqps.net.zeromq import ZmqTransport

#: Bytes that are passed on at once: little beside what a test sends, so that the rate is even.
PIECE_NBYTES = 16 << 10


class SlowLink(Proxy):
    """Stands before endpoints; all connections through it share its bandwidth, each way.

    While it is held up (`cut`) the connections stay open, and hosts go on to confirm what fits into their buffers: to a
    socket this is a peer that does not read, not a lost route.

    Parameters
    ----------
    nbytes_s
        Bytes a second, each way.
    delay_s
        Seconds that a piece takes longer.
    """

    def __init__(self, nbytes_s: float, delay_s: float = 0.0) -> None:
        super().__init__(0)
        self.nbytes = [0, 0]  # passed on: to where connections lead, and back
        self._nbytes_s = nbytes_s
        self._delay_s = delay_s
        self._free_at = [0.0, 0.0]
        self._open = threading.Event()
        self._open.set()
        self._streams: set[tuple[asyncio.AbstractEventLoop, asyncio.StreamWriter]] = set()

    def cut(self) -> None:
        """Pass nothing on from now on; from any thread."""
        self._open.clear()

    def heal(self) -> None:
        """Go on; from any thread."""
        self._open.set()

    def break_connections(self) -> None:
        """End all connections at once, with what is on its way; from any thread."""
        for loop, writer in list(self._streams):
            loop.call_soon_threadsafe(writer.transport.abort)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: int) -> None:
        loop = asyncio.get_running_loop()
        self._streams.add((loop, sink))
        try:
            with contextlib.suppress(ConnectionError), contextlib.closing(sink):
                while data := await source.read(PIECE_NBYTES):
                    leaves = max(loop.time(), self._free_at[way]) + len(data) / self._nbytes_s
                    self._free_at[way] = leaves
                    await asyncio.sleep(leaves + self._delay_s - loop.time())
                    while not self._open.is_set():  # noqa: ASYNC110 -- another thread sets it
                        await asyncio.sleep(0.01)
                    self.nbytes[way] += len(data)
                    sink.write(data)
                    await sink.drain()
        finally:
            self._streams.discard((loop, sink))


@contextlib.contextmanager
def slowed(monkeypatch: pytest.MonkeyPatch, nbytes_s: float, delay_s: float = 0.0) -> Iterator[SlowLink]:
    """Put a slow link between this process's workers and their servers; their shared memory it does not slow."""
    loop, wire = asyncio.new_event_loop(), SlowLink(nbytes_s, delay_s)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    connect = ZmqTransport.connect

    def connect_by_wire(self: ZmqTransport, peer: Peer, endpoint: str) -> None:
        if peer != COORDINATOR:
            endpoint = asyncio.run_coroutine_threadsafe(wire.before(endpoint), loop).result(allow(20.0))
        connect(self, peer, endpoint)

    monkeypatch.setattr(ZmqTransport, "connect", connect_by_wire)

    async def end() -> None:
        for server in wire._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield wire
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(allow(20.0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
