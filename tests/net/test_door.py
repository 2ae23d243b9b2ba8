"""The door of a ROUTER: strangers, from raw sockets, and what they cost while others work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest

import zmqps
import zmqps.optim
from tests.attack.raw import NULL, RawPeer, connect, frame, message
from tests.net.cluster import Cluster
from tests.net.test_zeromq import ANYWHERE, HELLO, PATIENCE, End, with_ends
from tests.pace import allow, stretch
from tests.tables import for_each
from zmqps.core.protocol.events import COORDINATOR
from zmqps.core.protocol.message import MAX_BACKLOG_NBYTES
from zmqps.core.protocol.messages import Pull
from zmqps.core.protocol.wire import MAX_FRAMES, encode
from zmqps.net import door, zeromq
from zmqps.net.backlog import PORTION
from zmqps.net.routes import new_local_endpoint
from zmqps.net.transport import INBOUND
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.inquiry import ask_status

MIB = 1 << 20
EVIL = INBOUND + b"evil"


def transports(cluster: Cluster) -> list[ZmqTransport]:
    """Return those of the coordinator and of the first server."""
    first, second = (driver.transport for driver in cluster.drivers[:2])
    return [first, second._inner]  # type: ignore[list-item, attr-defined]


def endpoints(cluster: Cluster) -> list[str]:
    return [cluster.address, cluster.drivers[1].machine.member.identity.endpoint.split()[0]]  # type: ignore[attr-defined]


@contextlib.contextmanager
def training(cluster: Cluster) -> Iterator[None]:
    """Let a worker train meanwhile; its values must be exact, and it must get on."""
    enough, failed, steps = threading.Event(), [], 0

    def train() -> None:
        nonlocal steps
        try:
            with zmqps.connect(cluster.address, transport="tcp", timeout=PATIENCE) as worker:
                worker.init(
                    {"w": np.zeros(1000, np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=1.0), mode="async"
                )
                while not enough.is_set() or steps < 3:
                    worker.push({"w": np.ones(1000, np.float32)})
                    steps += 1
                    assert (worker.pull()["w"] == -steps).all()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not failed
    assert cluster.num_internal_errors() == 0


def sends(client: RawPeer, pieces: Iterator[bytes]) -> int:
    """Send until the other side has had enough; return how many bytes that took."""
    sent = 0
    with contextlib.suppress(OSError):
        client.socket.settimeout(stretch(0.5))  # once it is shut nothing is read any more, and nothing can be sent
        for piece in pieces:
            client.socket.sendall(piece)
            sent += len(piece)
    client.socket.settimeout(PATIENCE)
    return sent


def empty_frames() -> Iterator[bytes]:
    yield from (frame(b"", more=True) * 4096 for _ in range(1000))
    yield frame(b"")


def unended_message() -> Iterator[bytes]:
    yield from (frame(bytes(1000), more=True) for _ in range(500_000))


def half_a_frame() -> Iterator[bytes]:
    yield frame(b"", more=True, size=64 * MIB)
    yield from (bytes(MIB) for _ in range(63))


@for_each("what", [empty_frames, unended_message, half_a_frame])
def test_what_a_stranger_sends_beyond_a_hello_is_thrown_away_and_others_train_on(
    what: Callable[[], Iterator[bytes]],
) -> None:
    with Cluster(1, 1 << 16) as cluster, training(cluster):
        before = psutil.Process().memory_info().rss
        clients = []
        for endpoint in endpoints(cluster):
            for number in range(4):
                client = RawPeer(endpoint, PATIENCE).shake_hands(b"evil-%d" % number)
                clients.append(client)
                sends(client, what())
        grown = psutil.Process().memory_info().rss - before
        assert all(client.is_shut() for client in clients)
        assert grown < 256 * MIB, f"{grown / MIB:.0f} MiB"
        # ZeroMQ itself ends a connection that announces more than a frame may have
        assert all(transport.facts()["connections_shut"] <= 4 for transport in transports(cluster)), "nobody else's"
        for client in clients:
            client.socket.close()


def test_nobody_waits_at_the_door_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PATIENCE_S", 0.2)
    with Cluster(1, 1 << 16) as cluster:
        for endpoint in endpoints(cluster):
            with (
                RawPeer(endpoint, PATIENCE) as silent,
                RawPeer(endpoint, PATIENCE) as slow,
                RawPeer(endpoint, PATIENCE) as mute,
            ):
                slow.socket.sendall(NULL[:20])
                mute.shake_hands(b"mute")
                assert silent.is_shut()
                assert slow.is_shut()
                assert mute.is_shut()
        with training(cluster):
            pass


def test_nobody_is_shut_for_the_time_that_the_door_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = stretch(1.0)
    monkeypatch.setattr(door, "PATIENCE_S", patience)

    async def scenario(server: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        watched = server.transport._door
        assert watched is not None
        with RawPeer(endpoint, PATIENCE) as mute:
            await aside(mute.shake_hands, b"mute")
            watched.judge()  # which takes note of the connection
            with watched._lock:  # without which its thread does nothing
                threading.Event().wait(1.5 * patience)
            await asyncio.sleep(patience / 4)
            assert watched._strangers
            assert await asyncio.to_thread(mute.is_shut)

    with_ends(scenario, b"server")


def test_the_first_of_too_many_strangers_has_to_go_and_newcomers_are_let_in() -> None:
    with Cluster(1, 1 << 16) as cluster, contextlib.ExitStack() as stack:
        for transport in transports(cluster):
            assert transport._door is not None
            transport._door.max_strangers = 8
        crowds = [[stack.enter_context(RawPeer(e, PATIENCE)) for _ in range(20)] for e in endpoints(cluster)]
        for crowd in crowds:
            assert all(client.is_shut() for client in crowd[:12])
        with training(cluster):
            pass


def test_requests_of_somebody_who_does_not_join_are_answered_and_too_many_are_not() -> None:
    with Cluster(1, 1 << 16) as cluster, RawPeer(cluster.address, PATIENCE).shake_hands(b"asker") as asker:
        question = encode(zmqps.core.protocol.messages.StatusRequest(1))
        for _ in range(20):
            asker.send(message([bytes(f) for f in question]))
            assert len(asker.receive()) == 1
        sends(asker, (frame(bytes(question[0])) for _ in range(10_000)))
        assert asker.is_shut()


def test_nothing_is_heard_any_more_of_a_stranger_that_was_shut() -> None:
    async def scenario(server: End) -> None:
        heard, after = 0, asyncio.Event()

        def deliver(peer: bytes, frames: Sequence[Any]) -> None:
            nonlocal heard
            heard += frames[0] == b"x"
            if frames[0] == b"y":
                after.set()

        endpoint = server.transport.bind(ANYWHERE)
        server.transport._deliver = deliver
        with RawPeer(endpoint, PATIENCE).shake_hands(b"evil") as evil:
            evil.send(frame(b"x") * 1000)  # which ZeroMQ has taken long before the first of them is answered
            assert await asyncio.to_thread(evil.is_shut)
        with RawPeer(endpoint, PATIENCE).shake_hands(b"next") as other:
            other.send(frame(b"y"))
            await asyncio.wait_for(after.wait(), PATIENCE)
        assert heard <= door.ALLOWANCE_NBYTES // door.MESSAGE_NBYTES + 2

    with_ends(scenario, b"server")


def test_a_stranger_gets_an_answer_to_a_short_message_of_any_kind() -> None:
    with Cluster(1, 1 << 16) as cluster, RawPeer(endpoints(cluster)[1], PATIENCE).shake_hands(b"early") as early:
        early.send(message([bytes(f) for f in encode(Pull(7, 1, 0, 0, "raw", ((0, 0, ()),)))]))
        (answer,) = early.receive()
        assert b"Pull before Hello" in answer


async def ended(end: End, peer: bytes) -> None:
    """Wait until the next one of whom it is known to have gone."""
    assert await asyncio.wait_for(end.gone.get(), PATIENCE) == peer


async def aside(work: Callable[..., object], *arguments: object) -> None:
    await asyncio.wait_for(asyncio.to_thread(work, *arguments), PATIENCE)


async def known(end: End, client: RawPeer, identity: bytes) -> None:
    """Let a client in; it is known once its next message is there."""
    await aside(client.shake_hands, identity)
    client.send(message([b""]))  # as every connection of ours begins
    client.send(message([HELLO]))
    client.send(message([b"header", bytes(MIB)]))
    peer, frames = await end.receive()
    assert (peer, len(frames)) == (INBOUND + identity, 2)


def test_a_known_peer_that_goes_is_missed_and_one_that_has_come_back_is_not() -> None:
    async def scenario(server: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        with (
            RawPeer(endpoint, PATIENCE) as first,
            RawPeer(endpoint, PATIENCE) as second,
            RawPeer(endpoint, PATIENCE) as other,
        ):
            await known(server, first, b"evil")
            await known(server, second, b"evil")  # from a new connection, before the end of the old one is seen
            first.socket.close()
            await known(server, other, b"other")
            other.socket.close()
            await ended(server, INBOUND + b"other")
            second.socket.close()
            await ended(server, EVIL)
        with RawPeer(endpoint, PATIENCE) as again:
            await aside(again.shake_hands, b"evil")
            again.send(message([b"header", bytes(MIB)]))  # it need not say hello
            assert (await server.receive())[0] == EVIL

    with_ends(scenario, b"server")


def test_a_connection_that_comes_back_is_known_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        client.transport.send(COORDINATOR, [b"1"], ())
        peer, _ = await server.receive()
        back, know = asyncio.Event(), server.transport._know
        monkeypatch.setattr(server.transport, "_know", lambda *args: (know(*args), back.set()))
        assert server.transport._door is not None
        server.transport._door.expel(peer, "the test")
        await ended(server, peer)
        await asyncio.wait_for(back.wait(), PATIENCE)
        client.transport.send(COORDINATOR, [bytes(MIB)], ())
        await server.receive()
        assert not server.transport._door._strangers
        assert server.transport.send(peer, [b"2"], ())
        assert await client.receive() == (COORDINATOR, [b"2"])

    with_ends(scenario, b"server", b"client")


def test_a_message_of_too_many_frames_is_thrown_away_in_portions_and_so_is_its_sender() -> None:
    async def scenario(server: End, client: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        client.connect(COORDINATOR, endpoint)
        with RawPeer(endpoint, PATIENCE) as evil:
            await known(server, evil, b"evil")
            batches = server.batches
            await aside(evil.socket.sendall, frame(b"", more=True) * (8 * PORTION + MAX_FRAMES) + frame(b""))
            await ended(server, EVIL)
            client.transport.send(COORDINATOR, [b"after it"], ())
            assert (await server.receive())[1] == [b"after it"]
            assert server.batches > batches + 5, "timers have had their turns"
            assert server.transport.counters["overlong"] == 1

    with_ends(scenario, b"server", b"client")


def test_nobody_comes_in_over_ipc_while_descriptors_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    # libzmq 4.3.5 ends the process if accept() has no descriptor for such a connection (ipc_listener.cpp)
    scarce = True

    async def scenario(server: End) -> None:
        nonlocal scarce
        local = server.transport.bind(new_local_endpoint())
        server.transport.bind(ANYWHERE)
        shut, opened = asyncio.Event(), asyncio.Event()
        side = server.transport._side_door
        assert side is not None
        shut_it, open_it = side.shut, side.open
        monkeypatch.setattr(side, "shut", lambda: (shut_it(), shut.set()))
        monkeypatch.setattr(side, "open", lambda loop: (open_it(loop), opened.set()))
        monkeypatch.setattr(door, "are_scarce", lambda descriptor: scarce)
        await asyncio.wait_for(shut.wait(), PATIENCE)
        with contextlib.suppress(ConnectionRefusedError):
            while True:  # ZeroMQ's thread closes it in a moment
                with contextlib.suppress(BlockingIOError):  # it has not got round to those who wait already
                    connect(local).close()
        scarce = False
        while side._is_shut:
            await asyncio.wait_for(opened.wait(), PATIENCE)
            opened.clear()
        with RawPeer(local, PATIENCE) as peer:
            await known(server, peer, b"evil")

    with_ends(scenario, b"server")


def test_few_descriptors_are_scarce() -> None:
    code = """
import json, os, resource
from zmqps.net import connections, routes
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
null = os.open(os.devnull, os.O_RDWR)
seen = []
while True:
    try:
        fd = os.dup(null)
    except OSError:
        break
    scarce = connections.are_scarce(null)
    if not seen or seen[-1][1] != scarce:
        seen.append((fd + 1, scarce))
print(json.dumps([*seen[1:], routes.new_local_endpoint()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=allow(60))
    assert json.loads(done.stdout) == [[48, None], [56, True], ""], "and nobody is let in over ipc"


def test_the_door_goes_on_after_a_connection_that_it_cannot_make_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address, asked = door.address_of, threading.Event()

    def broken(connection: object) -> NoReturn:
        asked.set()
        raise TypeError

    monkeypatch.setattr(door, "address_of", broken)
    monkeypatch.setattr(door, "PATIENCE_S", 0.1)

    async def scenario(server: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        with RawPeer(endpoint, PATIENCE):
            await aside(asked.wait, PATIENCE)
        monkeypatch.setattr(door, "address_of", address)
        with RawPeer(endpoint, PATIENCE) as peer:
            assert await asyncio.to_thread(peer.is_shut)

    with_ends(scenario, b"server")
    assert "internal error" in caplog.text


def test_what_a_connection_has_left_behind_is_given_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = threading.Event()
    monkeypatch.setattr(door, "TIDY_S", 0.0)
    monkeypatch.setattr(door, "give_back_freed_memory", given_back.set)

    async def scenario(server: End) -> None:
        endpoint = server.transport.bind(ANYWHERE)
        with RawPeer(endpoint, PATIENCE) as peer:
            await known(server, peer, b"evil")
            assert not given_back.is_set()
        await aside(given_back.wait, PATIENCE)
        assert given_back.is_set()

    with_ends(scenario, b"server")


def test_a_message_of_a_known_peer_that_does_not_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "MAX_UNREAD_NBYTES", 8 * MIB)

    async def scenario(server: End) -> None:
        server.transport.largest_nbytes = lambda: 4 * MIB
        endpoint = server.transport.bind(ANYWHERE)
        with RawPeer(endpoint, PATIENCE) as evil:
            await known(server, evil, b"evil")
            before = psutil.Process().memory_info().rss
            await aside(sends, evil, unended_message())
            assert evil.is_shut()
            assert psutil.Process().memory_info().rss - before < 256 * MIB
            await ended(server, EVIL)

    with_ends(scenario, b"server")


def test_one_may_send_any_number_of_messages_and_one_as_large_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "MAX_UNREAD_NBYTES", 2 * MIB)
    monkeypatch.setattr(door, "LOOK_KNOWN_S", 0.01)

    async def scenario(server: End) -> None:
        server.transport.largest_nbytes = lambda: 16 * MIB
        endpoint = server.transport.bind(ANYWHERE)
        with RawPeer(endpoint, PATIENCE) as honest:
            await known(server, honest, b"honest")
            doubts: list[bytes] = []
            doubt = server.transport._doubt
            monkeypatch.setattr(server.transport, "_doubt", lambda peer: (doubts.append(peer), doubt(peer)))
            for _ in range(60):
                sending = asyncio.create_task(aside(honest.send, message([b"header", *[bytes(MIB)] * 16])))
                _, frames = await server.receive()
                assert [len(f) for f in frames] == [6, *[MIB] * 16]
                await sending
            assert len(doubts) > 2
            assert server.gone.empty()

    with_ends(scenario, b"server")


@pytest.mark.parametrize("nbytes", [1000, 40_000, 3 * MIB])
def test_what_waits_for_a_peer_that_never_reads_is_bounded_and_ends_with_it(
    nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeromq, "MAX_BACKLOG_NBYTES", 8 * MIB)
    monkeypatch.setattr(zeromq, "STUCK_S", 0.0)
    assert MAX_BACKLOG_NBYTES > 8 * MIB

    async def scenario(server: End) -> None:
        server.transport._new_router().setsockopt(zeromq.zmq.SNDHWM, 0)  # else it takes a thousand small ones only
        endpoint = server.transport.bind(ANYWHERE)
        with RawPeer(endpoint, PATIENCE) as evil:
            await known(server, evil, b"evil")
            answer, sent = np.zeros(nbytes, np.uint8), 0
            while server.transport.send(EVIL, [b"header", answer], ()):
                sent += nbytes
                assert sent < 40 * MIB
            assert sent > 7 * MIB
            await ended(server, EVIL)
            assert set(server.transport._backlogs) == {b""}

    with_ends(scenario, b"server")


def test_one_that_reads_what_it_asks_for_may_ask_for_any_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "MAX_BACKLOG_NBYTES", 4 * MIB)

    async def scenario(server: End, client: End) -> None:
        client.connect(COORDINATOR, server.transport.bind(ANYWHERE))
        client.transport.send(COORDINATOR, [b"hello"], ())
        peer, _ = await server.receive()
        for nbytes in [1000, MIB, 9 * MIB, 30_000] * 10:
            for mark, _ in server.transport._backlogs[peer]._marks:
                await aside(mark.wait, PATIENCE)  # it has left, but ZeroMQ may not have let go of it yet
            assert server.transport.send(peer, [b"header", bytes(nbytes)], ())
            assert [len(f) for f in (await client.receive())[1]] == [6, nbytes]
        assert server.gone.empty()

    with_ends(scenario, b"server", b"client")


def test_a_node_without_descriptors_says_so_and_neither_spins_nor_locks_anybody_out() -> None:
    command = f"ulimit -n 64; exec {shlex.quote(sys.executable)} -m zmqps coordinator --address {ANYWHERE}"
    with (
        subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as node,
        contextlib.ExitStack() as stack,
    ):
        try:
            assert node.stdout is not None
            endpoint = next(re.findall(r"tcp://[\d.:]+", line)[0] for line in node.stdout if "tcp://" in line)
            node.send_signal(signal.SIGSTOP)  # so that all are there before the first of them is shut
            crowd = [stack.enter_context(RawPeer(endpoint, PATIENCE)) for _ in range(100)]
            node.send_signal(signal.SIGCONT)
            assert crowd[0].is_shut()
            process = psutil.Process(node.pid)
            before = sum(process.cpu_times()[:2])
            for _ in range(3):
                assert ask_status(endpoint, timeout=PATIENCE)["state"] == "waiting for servers"
            assert sum(process.cpu_times()[:2]) - before < 1.0
        finally:
            node.send_signal(signal.SIGCONT)
            node.terminate()
            output, _ = node.communicate(timeout=PATIENCE)
        assert output.count("raise the limit with `ulimit -n`") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_this_host_is_shut_over_ipc_and_this_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PATIENCE_S", 10 * PATIENCE)  # that is not why, nor is the handshake that takes over 5 s
    with Cluster(1, 1 << 16) as cluster:
        local = cluster.drivers[1].machine.member.identity.endpoint.split()[1]  # type: ignore[attr-defined]
        script = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(chr(0) + sys.argv[1])"
        )
        script += "; exec('while s.recv(4096): pass'); print('shut')"
        command = ["python3", "-I", "-S", "-c", script, local.removeprefix("ipc://@")]
        result = subprocess.run(command, user=65534, capture_output=True, text=True, timeout=PATIENCE, cwd="/")
        assert result.stdout == "shut\n", result.stderr
        with RawPeer(local, PATIENCE).shake_hands(b"own") as own:
            own.send(message([bytes(f) for f in encode(Pull(7, 1, 0, 0, "raw", ((0, 0, ()),)))]))
            assert b"Pull before Hello" in own.receive()[0]
