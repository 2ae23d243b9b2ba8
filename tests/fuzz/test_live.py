"""Fuzzing live nodes: they answer or drop, go on serving a well-behaved worker, and their values stay."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import msgpack
import numpy as np
import pytest

import zmqps
from tests.fuzz.cluster import ASSIGN, EPOCH, JOB, PLACEMENT, Cluster, fuzzer, hello, live_cluster, stream, ticketed
from zmqps.core.protocol.messages import (
    Discard,
    Discarded,
    EndJob,
    Enter,
    Error,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Init,
    Job,
    JobEnded,
    Left,
    Load,
    Lost,
    Message,
    Pull,
    Push,
    Ready,
    Shutdown,
    StatusRequest,
    Values,
    Welcome,
    Withdraw,
)
from zmqps.core.protocol.wire import MAX_FRAME_NBYTES, decode, encode
from zmqps.core.server.parked import Awaited, Parked
from zmqps.errors import BY_CODE

OBSERVER = bytes(16)
WHOLE = tuple((slice_.index, 0, ()) for slice_ in PLACEMENT.slices[0])
ARRAYS = tuple(np.full(p.size, 7, PLACEMENT.keyspace.tables[p.table].dtype) for p in PLACEMENT.slices[0])
LARGE = np.ones(5000, "<f4")

#: Observers may ask for anything and change nothing, so whatever comes of these, the values stay. One has a ticket.
TO_SERVER: list[Message] = [
    hello("observer", OBSERVER),
    hello("worker", bytes([7]) * 16),
    Pull(1, EPOCH, 0, 0, "raw", WHOLE),
    Pull(2, EPOCH, 0, 0, "raw", ((0, 0, ()),)),
    Push(3, 1, EPOCH, 0, 0, 1, 1, 1, "raw", "raw", WHOLE, ARRAYS),
    Push(4, 2, EPOCH, 0, 0, 1, 0, 0, "raw", "raw", ((0, 0, ()),), (LARGE,)),
    Load(5, EPOCH, WHOLE, ARRAYS),
    Load(6, EPOCH, ((0, 0, ()),), (LARGE, LARGE)),
    Values(7, "raw", (1,), (), (LARGE,)),
    Error(0, 7, "evicted", {"reason": "evicted"}),
    Shutdown("by a stranger"),
    replace(ASSIGN, epoch=9),
    Discard(EPOCH),
    Discarded(EPOCH),
    EndJob(8, "default"),
    JobEnded(9, "ended by a stranger"),
    Error(0, 48, "ended", {"job": "default", "reason": "by a stranger"}),
    Lost("worker", 0, "somebody", bytes(16), 1.0),
    Left(),
    StatusRequest(1),
]
TO_COORDINATOR: list[Message] = [
    hello("observer", OBSERVER),
    hello("observer", OBSERVER),
    hello("server", bytes([9]) * 16),
    Heartbeat({"a": 1}),
    Init(1, {}),
    Init(2, JOB.to_wire()),
    Enter(3, "barrier"),
    Withdraw(4),
    Ready(EPOCH, 1),
    StatusRequest(5),
    Shutdown("by a stranger"),
    Error(0, 40, "x", {"reason": "x"}),
    Error(EPOCH, 49, "x", {"reason": "x"}),
    Discard(EPOCH),
    Discarded(EPOCH),
    EndJob(6, "another"),
    JobEnded(7, "ended by a stranger"),
    replace(hello("observer", bytes([8]) * 16), job="another"),
    Job(1, 1, {}, {}, 1, 0, 1, ""),
    Welcome(1, bytes(16), "x", 0, 1.0, 2.0, 1, 1),
    HeartbeatAck(1),
    Push(3, 1, EPOCH, 0, 0, 1, 1, 1, "raw", "raw", WHOLE, ARRAYS),
]
PARAMETERS = {"w": np.ones((6, 5), np.float32), "b": np.ones(4), "c": np.ones(3, np.float32)}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with live_cluster() as cluster:
        yield cluster
        assert cluster.internal_errors == 0
        assert cluster.problems == []


def flood(endpoint: str, seeds: list[Message], count: int, seed: int) -> Counter[str]:
    """Send a stream in batches, each answered before the next is sent; return what the answers were."""
    answers: Counter[str] = Counter()
    with fuzzer(endpoint, b"fuzz%d" % seed) as socket:
        sent = 0
        for frames in stream(seeds, count, seed):
            socket.send_multipart(frames)
            sent += 1
            if sent % 200 == 0 or sent == count:
                number = msgpack.packb([18, sent])  # not a server's business, but answered all the same
                socket.send(number)
                while True:
                    answer = decode(socket.recv_multipart())
                    assert not isinstance(answer, Error) or answer.code in BY_CODE
                    if getattr(answer, "request", None) == sent and type(answer).__name__ in ("Status", "Error"):
                        break
                    answers[type(answer).__name__] += 1
    return answers


class Waiting(Parked):
    """Pulls of versions that are not there yet; counts those that take another's place because of their number, too."""

    num_pulls = 0

    def add(self, who: bytes, pull: Pull, awaits: Sequence[Awaited]) -> None:
        self.num_pulls += 1
        super().add(who, pull, awaits)


def invited(cluster: Cluster) -> Hello:
    """Return what an observer says to the server who has its ticket."""
    return ticketed("observer", OBSERVER, cluster.server.tenants[EPOCH].assign.key)


def check_that_fuzzing_is_survived(cluster: Cluster, count: int) -> None:
    coordinator, server = cluster.endpoints
    with zmqps.connect(coordinator, timeout=30.0) as worker:
        worker.init(PARAMETERS, optimizer=zmqps.optim.sgd(0.5), timeout=30.0)
        worker.push({"b": np.ones(4)})
        before, clients = cluster.snapshot(), len(cluster.server.clients)
        to_server = [invited(cluster), invited(cluster), *TO_SERVER]
        for seed, (endpoint, seeds) in enumerate([(server, to_server), (coordinator, TO_COORDINATOR)]):
            dropped = -cluster.num_dropped
            cluster.server.tenants[EPOCH].parked = waiting = Waiting()
            answers = flood(endpoint, seeds, count, seed)
            dropped += cluster.num_dropped
            if endpoint == server:
                handled = sum(answers.values()) + dropped + waiting.num_pulls
                assert handled == count, "every message is answered, counted as dropped, or waits for a version"
            assert answers["Error"] > count / 4
        assert cluster.snapshot() == before
        assert len(cluster.server.clients) == clients + 1, "nobody but who has a ticket"
        few = clients + 10 + count // 100  # a Hello with a damaged incarnation is somebody new
        assert len(cluster.coordinator.membership.members) <= few
        worker.push({"b": np.ones(4), "c": np.ones(3, np.float32)}, timeout=30.0)
        pulled = worker.pull(timeout=30.0)
        np.testing.assert_array_equal(pulled["b"], np.zeros(4))
        np.testing.assert_array_equal(pulled["c"], np.full(3, 0.5))
        np.testing.assert_array_equal(pulled["w"], PARAMETERS["w"])


def test_a_live_cluster_survives_a_thousand_odd_messages(cluster: Cluster) -> None:
    check_that_fuzzing_is_survived(cluster, 500)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_live_cluster_survives_two_hundred_thousand_odd_messages(cluster: Cluster) -> None:
    check_that_fuzzing_is_survived(cluster, 100_000)


# --- those who speak no ZeroMQ ------------------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f"
NULL = GREETING + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
PROPERTIES = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
READY = b"\x04" + bytes([len(PROPERTIES)]) + PROPERTIES
SPEECHES = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(200),
    "ones": b"\xff" * 200,
    "half a greeting": GREETING[:7],
    "a greeting of another mechanism": GREETING + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32),
    "a greeting, then noise": NULL + b"\x07\x99" * 50,
    "a handshake, then a frame of a petabyte": NULL + READY + b"\x02" + (1 << 50).to_bytes(8, "big") + b"x",
    "a handshake, then a frame of 2**63": NULL + READY + b"\x02" + b"\xff" * 8 + b"x",
    "a handshake, then part of a message": NULL + READY + b"\x01\x05hello",
}


def address(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def test_raw_tcp_clients_do_not_disturb_a_live_cluster(cluster: Cluster) -> None:
    coordinator, server = cluster.endpoints
    rng = random.Random(0)
    speeches = [*SPEECHES.values(), *(rng.randbytes(rng.randint(1, 300)) for _ in range(40))]
    with zmqps.connect(coordinator, timeout=30.0) as worker:
        worker.init(PARAMETERS, optimizer=zmqps.optim.sgd(0.5), timeout=30.0)
        before = cluster.snapshot()
        open_ones = []
        try:
            for endpoint in (coordinator, server):
                for speech in speeches:
                    client = socket.create_connection(address(endpoint), timeout=10)
                    open_ones.append(client)
                    client.sendall(speech)
            pulled = worker.pull(timeout=30.0)  # while they are all connected
        finally:
            for client in open_ones:
                client.close()
        np.testing.assert_array_equal(pulled["w"], PARAMETERS["w"])
        assert cluster.snapshot() == before
        assert len(cluster.server.clients) == 1, "nobody of them is known"
        worker.push({"w": PARAMETERS["w"]}, timeout=30.0)


def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (chunk := client.recv(size - len(received))):
        received += chunk
    return received


def test_a_frame_beyond_the_limit_costs_its_sender_the_connection(cluster: Cluster) -> None:
    coordinator, server = cluster.endpoints
    with socket.create_connection(address(server), timeout=20) as client:
        client.sendall(NULL)
        assert receive(client, len(NULL)).startswith(b"\xff")
        client.sendall(READY)
        _, size = receive(client, 2)
        assert receive(client, size).startswith(b"\x05READY")
        client.sendall(b"\x02" + (MAX_FRAME_NBYTES + 1).to_bytes(8, "big"))  # no more than the claim
        assert client.recv(1) == b"", "the connection has ended"
    with zmqps.connect(coordinator, timeout=30.0) as worker, fuzzer(server, b"honest") as honest:
        worker.init(PARAMETERS, optimizer=zmqps.optim.sgd(0.5), timeout=30.0)
        honest.send_multipart(encode(invited(cluster)))
        assert isinstance(decode(honest.recv_multipart()), Welcome)


def test_a_peer_that_never_reads_does_not_stop_the_others(cluster: Cluster) -> None:
    coordinator, server = cluster.endpoints
    with zmqps.connect(coordinator, timeout=30.0) as worker:
        worker.init(PARAMETERS, optimizer=zmqps.optim.sgd(0.5), timeout=30.0)
        with fuzzer(server, b"deaf") as deaf:
            deaf.send_multipart(encode(invited(cluster)))
            for i in range(3000):
                deaf.send_multipart(encode(Pull(i + 1, EPOCH, 0, 0, "raw", WHOLE)))
            for _ in range(20):
                worker.push({"b": np.ones(4)}, timeout=30.0)
            np.testing.assert_array_equal(worker.pull(timeout=30.0)["b"], np.full(4, -9.0))
