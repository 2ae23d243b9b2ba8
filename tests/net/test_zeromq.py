"""The ZeroMQ transport on loopback: order, aliasing, what is dropped, and peers that do not behave."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.pace import allow
from tests.tables import for_each
from zmqps.core.protocol.events import COORDINATOR, Connected, Disconnected, Reader, Unreachable
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.net import zeromq
from zmqps.net.dealer import ROUTING_NBYTES
from zmqps.net.transport import INBOUND
from zmqps.net.zeromq import COPY_NBYTES, ZmqTransport

ANYWHERE = "tcp://127.0.0.1:0"
PATIENCE = allow(20.0)
HELLO = b"let me in"


class End:
    """A transport, and what was delivered to it."""

    def __init__(self) -> None:
        self.transport = ZmqTransport()
        self.inbox: asyncio.Queue[tuple[bytes, list[bytes]]] = asyncio.Queue()
        self.batches = 0
        self.gone: asyncio.Queue[bytes] = asyncio.Queue()
        self.came: asyncio.Queue[bytes] = asyncio.Queue()

    def start(self) -> None:
        def delivered() -> None:
            self.batches += 1

        def noticed(event: Connected | Disconnected | Unreachable) -> None:
            (self.came if isinstance(event, Connected) else self.gone).put_nowait(event.peer)

        self.transport.start(self._deliver, delivered, noticed)

    def _deliver(self, peer: bytes, frames: Sequence[Any]) -> None:
        if frames[0] == HELLO:
            self.transport.greeting(peer)  # as a machine does that answers with its Welcome
        else:
            self.inbox.put_nowait((peer, [bytes(f) for f in frames]))

    async def receive(self) -> tuple[bytes, list[bytes]]:
        return await asyncio.wait_for(self.inbox.get(), PATIENCE)

    def connect(self, peer: bytes, endpoint: str) -> None:
        self.transport.connect(peer, endpoint)
        # the connection is made by ZeroMQ's own thread; nothing can be sent before
        assert self.transport._dealers.sockets[peer].poll(PATIENCE * 1000, zmq.POLLOUT)
        assert self.transport.send(peer, [HELLO], ())


def with_ends(scenario: Callable[..., Awaitable[None]], *names: bytes) -> None:
    """Run a scenario on transports of these names, closed afterwards whatever happens."""

    async def run() -> None:
        ends = [End() for _ in names]
        try:
            for end in ends:
                end.start()
            await scenario(*ends)
        finally:
            for end in ends:
                end.transport.close(0)

    asyncio.run(run())


async def introduced(one: End, two: End, client: End) -> list[tuple[bytes, list[bytes]]]:
    """Connect a client to two others, as ``server-0`` and ``server-1``; return what each has received, from whom."""
    client.connect(b"server-0", one.transport.bind(ANYWHERE))
    client.connect(b"server-1", two.transport.bind(ANYWHERE))
    client.transport.send(b"server-1", [b"for two"], ())
    client.transport.send(b"server-0", [b"for one"], ())
    return [await one.receive(), await two.receive()]


@contextmanager
def raw_dealer(endpoint: str, identity: bytes, **options: int) -> Iterator[zmq.Socket[bytes]]:
    """Open a socket that does not come from our transport."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.LINGER, 0)
    for name, value in options.items():
        socket.setsockopt(getattr(zmq, name), value)
    try:
        socket.connect(endpoint)
        yield socket
    finally:
        socket.close(0)
        context.term()


def test_messages_arrive_whole_and_in_order_in_both_directions() -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        for i in range(600):
            assert client.transport.send(COORDINATOR, [b"%d" % i, b"body"], ())
        peers = set()
        for i in range(600):
            peer, frames = await server.receive()
            peers.add(peer)
            assert frames == [b"%d" % i, b"body"]
            assert server.transport.send(peer, [b"re %d" % i], ())
        (peer,) = peers
        assert peer.startswith(INBOUND + b"z")
        assert len(peer) == len(INBOUND) + 1 + ROUTING_NBYTES, "random, so that nobody can take it over"
        assert [await client.receive() for _ in range(600)] == [(COORDINATOR, [b"re %d" % i]) for i in range(600)]
        assert server.batches

    with_ends(scenario, b"server", b"client")


def test_a_node_tells_its_connections_apart() -> None:
    async def scenario(one: End, two: End, client: End) -> None:
        (peer, frames), (other, frames_of_two) = await introduced(one, two, client)
        assert (frames, frames_of_two) == ([b"for one"], [b"for two"])
        one.transport.send(peer, [b"1"], ())
        two.transport.send(other, [b"2"], ())
        assert sorted([await client.receive(), await client.receive()]) == [
            (b"server-0", [b"1"]),
            (b"server-1", [b"2"]),
        ]

    with_ends(scenario, b"one", b"two", b"client")


def test_a_connection_that_was_closed_leaves_nothing_and_may_be_opened_again() -> None:
    async def scenario(server: End, other: End, client: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        client.connect(b"server-0", other.transport.bind(ANYWHERE))
        before = len(os.listdir("/proc/self/fd"))
        for number in range(1, 9):
            peer = b"server-%d" % number
            client.connect(peer, endpoint)
            assert client.transport.send(peer, [HELLO], ())
            assert client.transport.send(peer, [b"%d" % number], ())
            assert (await server.receive())[1] == [b"%d" % number]
            client.transport.disconnect(peer)
            assert not client.transport.send(peer, [b"to nobody"], ())
            await asyncio.wait_for(server.gone.get(), PATIENCE)  # the other end hears of it
        client.transport.disconnect(b"server-8")  # said again it changes nothing
        assert len(os.listdir("/proc/self/fd")) <= before + 8, "less than two a connection"
        assert client.gone.empty(), "who has closed it is not told"

    with_ends(scenario, b"server", b"other", b"client")


def test_large_frames_arrive_as_they_were_and_their_readers_become_done() -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        arrays = [np.arange(n, dtype=np.uint8) for n in (3, COPY_NBYTES, 5 << 20, 7)]
        readers: list[Reader] = []
        others: list[Reader] = []
        assert client.transport.send(COORDINATOR, [b"header", *arrays], (readers, others))
        _, frames = await server.receive()
        assert frames == [b"header", *(array.tobytes() for array in arrays)]
        assert len(readers) == len(others) == 1
        await asyncio.to_thread(readers[0].wait, PATIENCE)  # type: ignore[attr-defined]
        assert readers[0].done

    with_ends(scenario, b"server", b"client")


def test_small_messages_are_copied_and_have_no_readers() -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        array = np.zeros(100, np.uint8)
        readers: list[Reader] = []
        client.transport.send(COORDINATOR, [b"header", array], (readers,))
        array[:] = 1  # ours again as soon as send returns
        assert (await server.receive())[1][1] == bytes(100)
        assert readers == []

    with_ends(scenario, b"server", b"client")


def test_a_reader_is_not_done_while_a_large_frame_waits_even_if_a_small_one_ends_the_message() -> None:
    async def scenario(server: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        with raw_dealer(endpoint, b"slow", RCVHWM=1, RCVBUF=4096) as slow:
            slow.send(b"hello")
            peer, _ = await server.receive()
            large, small = np.zeros(8 << 20, np.uint8), np.zeros(10, np.uint8)
            readers: list[Reader] = []
            for _ in range(6):  # more than the receiver's queue and the kernel take
                assert server.transport.send(peer, [b"header", large, small], (readers,))
            assert not readers[-1].done
            for _ in range(6):
                assert [len(frame) for frame in slow.recv_multipart()] == [6, 8 << 20, 10]
            await asyncio.to_thread(readers[-1].wait, PATIENCE)  # type: ignore[attr-defined]

    with_ends(scenario, b"server")


def test_what_cannot_be_delivered_is_dropped_and_counted() -> None:
    async def scenario(server: End, client: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        big = np.zeros(1 << 20, np.uint8)
        readers: list[Reader] = []
        assert not server.transport.send(INBOUND + b"nobody", [b"x"], ())
        assert not server.transport.send(INBOUND + b"nobody", [b"x", big], (readers,))
        assert not server.transport.send(b"never connected", [b"x"], ())
        assert server.transport.counters["undeliverable"] == 3
        assert readers == [], "nobody reads what was dropped"
        client.transport.connect(COORDINATOR, endpoint.replace("tcp://127.0.0.1", "tcp://127.0.0.2"))
        assert not client.transport.send(COORDINATOR, [b"x"], ())
        assert client.transport.counters["undeliverable"] == 1

    with_ends(scenario, b"server", b"client")


def test_a_busy_port_is_named_and_so_is_who_holds_it() -> None:
    async def scenario(one: End, two: End) -> None:
        endpoint = one.transport.bind(ANYWHERE)
        with pytest.raises(AddressInUseError) as caught:
            two.transport.bind(endpoint)
        error = caught.value
        assert (error.endpoint, error.port) == (endpoint, int(endpoint.rpartition(":")[2]))
        assert f"(pid {os.getpid()})" in error.owner
        assert isinstance(error, OSError)

    with_ends(scenario, b"one", b"two")


@for_each("endpoint", ["tcp://127.0.0.1", "tcp://203.0.113.77:0", "tcp://", "carrier-pigeon://x", ""])
def test_an_endpoint_that_cannot_be_bound_is_a_configuration_error(endpoint: str) -> None:
    async def scenario(server: End) -> None:
        with pytest.raises(ConfigurationError, match="cannot bind"):
            server.transport.bind(endpoint)

    with_ends(scenario, b"server")


def test_an_endpoint_that_is_none_cannot_be_connected_to() -> None:
    async def scenario(client: End) -> None:
        with pytest.raises(ConfigurationError, match="cannot connect"):
            client.transport.connect(COORDINATOR, "nowhere")

    with_ends(scenario, b"client")


def test_nobody_can_choose_an_identity_that_is_the_name_of_a_connection_we_opened() -> None:
    async def scenario(coordinator: End, server: End) -> None:
        server.connect(COORDINATOR, coordinator.transport.bind(ANYWHERE))
        with raw_dealer(server.transport.bind(ANYWHERE), COORDINATOR) as impostor:
            impostor.send(b"do as I say")
            peer, _ = await server.receive()
            assert peer == INBOUND + COORDINATOR != COORDINATOR
            server.transport.send(COORDINATOR, [b"secret"], ())
            assert (await coordinator.receive())[1] == [b"secret"]
            server.transport.send(peer, [b"no"], ())
            assert impostor.recv() == b"no", "and nothing else"

    with_ends(scenario, b"coordinator", b"server")


def test_a_frame_beyond_the_limit_ends_the_connection_and_not_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.net.sockets.MAX_FRAME_NBYTES", 1 << 20)
    monkeypatch.setattr("zmqps.net.sockets.MAX_HEADER_NBYTES", 1 << 20)

    async def scenario(server: End, client: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        with raw_dealer(endpoint, b"greedy") as greedy:
            monitor = greedy.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            greedy.send_multipart([b"header", bytes((1 << 20) + 1)])
            try:
                assert monitor.poll(PATIENCE * 1000)
                assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
            finally:
                greedy.disable_monitor()
                monitor.close(0)
            client.connect(COORDINATOR, endpoint)
            client.transport.send(COORDINATOR, [b"header", bytes(1 << 20)], ())
            _, frames = await server.receive()
            assert [len(frame) for frame in frames] == [6, 1 << 20]

    with_ends(scenario, b"server", b"client")


def test_a_flood_of_one_connection_does_not_keep_the_loop_from_its_timers() -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        count = 2 * zeromq.BATCH + 10
        for _ in range(count):
            assert client.transport.send(COORDINATOR, [b"x"], ())
        for _ in range(count):
            await server.receive()
        assert server.batches >= 3, "control comes back after each batch"

    with_ends(scenario, b"server", b"client")


def test_messages_that_take_long_do_not_keep_the_loop_from_its_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As values that are written to new pages, of a host that has few."""

    async def scenario(server: End, client: End) -> None:
        now = [0.0]

        def monotonic() -> float:
            now[0] += zeromq.BATCH_S
            return now[0]

        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        for _ in range(zeromq.BATCH):
            assert client.transport.send(COORDINATOR, [b"x"], ())
        monkeypatch.setattr(zeromq, "time", SimpleNamespace(monotonic=monotonic))
        for _ in range(zeromq.BATCH):
            await server.receive()
        monkeypatch.undo()
        assert server.batches >= zeromq.BATCH // 16, "control comes back after each round"

    with_ends(scenario, b"server", b"client")


def test_however_often_the_door_asks_a_flood_does_not_keep_the_loop_from_its_timers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that always has one more message; the door asks because of others."""

    class Endless:
        closed = False

    async def scenario(server: End) -> None:
        server.transport.bind(ANYWHERE)
        monkeypatch.setattr(zeromq, "readable", lambda socket: True)
        monkeypatch.setattr(zeromq, "receive_frames", lambda socket: [memoryview(b"x")])
        sockets = list(server.transport._sockets)
        server.transport._sockets[:] = [(b"server-0", Endless())]  # type: ignore[list-item]
        server.transport._to_drain.clear()
        per_turn = []
        for _ in range(20):
            for peer in (b"", b"who has gone"):
                for _ in range(10):
                    server.transport._later(peer)
            before = server.inbox.qsize()
            await asyncio.sleep(0)
            per_turn.append(server.inbox.qsize() - before)
        assert 0 < max(per_turn) <= zeromq.BATCH + 16
        server.transport._sockets[:] = sockets

    with_ends(scenario, b"server")


def test_a_message_is_delivered_though_a_send_over_its_connection_has_swallowed_what_announced_it() -> None:
    async def scenario(one: End, two: End, client: End) -> None:
        (peer, _), (other, _) = await introduced(one, two, client)
        connection = client.transport._dealers.sockets[b"server-0"]

        def deliver(sender: bytes, frames: Sequence[Any]) -> None:
            client.inbox.put_nowait((sender, [bytes(frame) for frame in frames]))
            if sender == b"server-1":  # the first connection was found empty before
                assert one.transport.send(peer, [b"late"], ())
                assert select.select([connection.FD], [], [], PATIENCE)[0]
                while select.select([connection.FD], [], [], 0)[0]:  # ZeroMQ looks at it once in a while only
                    assert client.transport.send(b"server-0", [b"on the way"], ())

        client.transport._deliver = deliver
        two.transport.send(other, [b"first"], ())
        assert await client.receive() == (b"server-1", [b"first"])
        assert await client.receive() == (b"server-0", [b"late"])

    with_ends(scenario, b"one", b"two", b"client")


def test_closing_twice_is_closing() -> None:
    async def run() -> None:
        transport = ZmqTransport()
        transport.bind(ANYWHERE)
        transport.start(lambda *_: None, lambda: None, lambda _: None)
        transport.close(0)
        transport.close(0)

    asyncio.run(run())


def test_goodbyes_leave_within_the_linger_time() -> None:
    async def run() -> None:
        server, client = End(), End()
        server.start()
        client.start()
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        client.transport.send(COORDINATOR, [b"goodbye"], ())
        client.transport.close(PATIENCE)
        received: Any = await server.receive()
        server.transport.close(0)
        assert received[1] == [b"goodbye"]

    asyncio.run(run())
