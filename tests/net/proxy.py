"""A proxy between sockets that delays bytes, and cuts the stream where no message ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from random import Random

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Stands before endpoints; every connection through it is disturbed by itself, so they overtake each other.

    Parameters
    ----------
    seed
        Of the sizes and delays.
    """

    def __init__(self, seed: int) -> None:
        self.num_pieces = 0
        self._rng = Random(seed)
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()

    async def before(self, endpoint: str) -> str:
        """Return the endpoint that leads to another one, ``tcp://`` or ``ipc://@``."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await _connect(endpoint)
            for way, (source, sink) in enumerate(((reader, there[1]), (there[0], writer))):
                pump = asyncio.create_task(self._pump(source, sink, way))
                self._pumps.add(pump)
                pump.add_done_callback(self._pumps.discard)

        if endpoint.startswith("tcp://"):
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            entrance = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        else:
            name = f"zmqps-proxy-{secrets.token_hex(8)}"
            server = await asyncio.start_unix_server(accept, f"\0{name}")
            entrance = f"ipc://@{name}"
        self._servers.append(server)
        return entrance

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: int) -> None:
        """Pass on what comes; ``way``: 0 to where the connection leads, 1 back."""
        rng = self._rng
        with contextlib.suppress(ConnectionError), contextlib.closing(sink):
            while data := await source.read(1 << 17):
                cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(4)))
                for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
                    sink.write(data[start:stop])
                    await sink.drain()
                    self.num_pieces += 1
                    if rng.random() < 0.2:
                        await asyncio.sleep(rng.uniform(0.0, 0.002))

    async def close(self) -> None:
        """Close everything."""
        for server in self._servers:
            server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close in the loop's next turn


async def _connect(endpoint: str) -> Streams:
    if endpoint.startswith("tcp://"):
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        return await asyncio.open_connection(host, int(port))
    return await asyncio.open_unix_connection("\0" + endpoint.removeprefix("ipc://@"))
