"""Connections that this node opens: what is told of them, when one is ended, and what travels twice."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.net.cluster import Cluster
from tests.net.slowlink import SlowLink
from tests.net.test_zeromq import ANYWHERE, PATIENCE, End, with_ends
from zmqps.core.protocol.events import COORDINATOR
from zmqps.core.worker.connections import link
from zmqps.net import dealer
from zmqps.net.backlog import MARK_NBYTES, Backlog
from zmqps.net.connections import confirmed, silence

SIZE = 1 << 20  # elements


async def soon(queue: Any) -> bytes:
    return bytes(await asyncio.wait_for(queue.get(), PATIENCE))


def test_a_connection_is_told_of_when_it_comes_breaks_and_comes_back() -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        assert await soon(client.came) == COORDINATOR
        peer, _ = await said(client, server)
        server.transport._door.expel(peer, "the test says so")  # type: ignore[union-attr]
        assert await soon(client.gone) == COORDINATOR
        assert await soon(client.came) == COORDINATOR
        assert (await said(client, server))[0] == peer

    with_ends(scenario, b"server", b"client")


async def said(client: End, server: End) -> tuple[bytes, list[bytes]]:
    assert client.transport.send(COORDINATOR, [b"hear me"], ())
    return await server.receive()


def test_what_is_sent_as_soon_as_a_connection_is_told_of_arrives() -> None:
    async def scenario(server: End, client: End) -> None:
        client.transport.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        assert await soon(client.came) == COORDINATOR
        assert client.transport.send(COORDINATOR, [b"hello"], ())

    with_ends(scenario, b"server", b"client")


def test_a_connection_over_which_nothing_is_confirmed_is_ended_and_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealer, "LOOK_S", 0.02)

    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        assert await soon(client.came) == COORDINATOR
        (one,) = client.transport._dealers._dealers.values()
        one._address = None  # the number is another connection's by now: that one is left alone
        with monkeypatch.context() as patch:
            patch.setattr(dealer, "silence", lambda descriptor: (dealer.SILENCE_S, dealer.MIN_REPEATS))
            one.look()
            await said(client, server)
            one._open(one._descriptor)
            one.look()
        assert await soon(client.gone) == COORDINATOR
        assert await soon(client.came) == COORDINATOR
        await said(client, server)

    with_ends(scenario, b"server", b"client")


@pytest.mark.parametrize("found", [(dealer.SILENCE_S - 0.1, 9), (9.0, dealer.MIN_REPEATS - 1)])
def test_a_connection_that_is_only_slow_or_idle_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, found: tuple[float, int]
) -> None:
    monkeypatch.setattr(dealer, "silence", lambda descriptor: found)

    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        assert await soon(client.came) == COORDINATOR
        (one,) = client.transport._dealers._dealers.values()
        one.look()
        await said(client, server)
        assert client.gone.empty()

    with_ends(scenario, b"server", b"client")


def test_a_peer_that_reads_nothing_confirms_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            one.setblocking(False)
            sent = 0
            try:
                while True:
                    sent += one.send(bytes(1 << 16))
            except BlockingIOError:
                pass
            time.sleep(0.7)  # the kernel asks for room after 0.2 s, then 0.4 s later
            silent_s, repeats = silence(one.fileno())
            assert sent
            assert silent_s < 0.65
            assert repeats <= 1


def test_of_what_is_no_tcp_connection_nothing_is_known() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert silence(one.fileno()) == (0.0, 0)
    assert silence(1 << 20) == (0.0, 0)


def test_over_a_slow_link_nothing_is_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PROBE_S", 0.1)
    slow, values = SlowLink(8e6), np.zeros(SIZE, np.float32)
    with Cluster(1, slice_nbytes=2 << 20, proxy=slow) as cluster, zmqps.connect(cluster.address, transport="tcp") as w:
        w.init({"w": values}, optimizer=zmqps.optim.sgd(1.0), mode="async")
        before = slow.nbytes[0]
        w.push({"w": np.ones_like(values)}, timeout=PATIENCE)
        assert slow.nbytes[0] - before <= 1.05 * values.nbytes
        assert w.statistics().retries == 0
        w.finish()


def test_what_is_lost_with_a_connection_is_sent_again_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PROBE_S", 1000.0)  # the connection itself says that it is back
    slow, values = SlowLink(16e6), np.zeros(SIZE, np.float32)
    with Cluster(1, slice_nbytes=1 << 20, proxy=slow) as cluster, zmqps.connect(cluster.address, transport="tcp") as w:
        w.init({"w": values}, optimizer=zmqps.optim.sgd(1.0), mode="async")
        slow.cut()
        before = slow.nbytes[0]
        pushed = w.push_async({"w": np.ones_like(values)}, timeout=PATIENCE)
        slow.heal()
        while slow.nbytes[0] < before + values.nbytes // 2:
            time.sleep(0.001)
        slow.break_connections()
        pushed.result()
        assert w.statistics().retries > 0
        w.pull(out={"w": values}, timeout=PATIENCE)
        assert set(np.unique(values)) == {-1.0}
        w.finish()


def test_who_reads_one_large_message_slowly_is_not_stuck() -> None:
    backlog = Backlog()
    backlog.stuck_since = 0.0
    backlog.note(MARK_NBYTES - 1, 5.0)
    assert backlog.stuck_since == 0.0, "some bytes are no excuse"
    backlog.note(MARK_NBYTES, 6.0)
    assert backlog.stuck_since == 6.0
    backlog.note(MARK_NBYTES + 1, 7.0)
    assert backlog.stuck_since == 6.0


def test_what_the_other_host_has_confirmed_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            before = confirmed(one.fileno())
            one.sendall(bytes(1000))
            assert len(other.recv(1000, socket.MSG_WAITALL)) == 1000
            other.sendall(b"x")
            assert one.recv(1) == b"x"
            assert confirmed(one.fileno()) - before == 1000
    assert confirmed(-1) == 0
