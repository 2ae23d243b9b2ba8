"""Fuzzing live nodes: they answer or drop, go on serving a well-behaved worker, and their values stay."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import msgpack
import numpy as np
import pytest

import zmqps
from tests.attack.raw import GREETING, NULL, connect, ready, receive
from tests.attack.stranger import Member, fuzzer, hello
from tests.fuzz.cluster import ASSIGN, EPOCH, JOB, PLACEMENT, Cluster, live_cluster, stream
from tests.pace import allow
from zmqps.core.coordinator.members import membership
from zmqps.core.protocol.messages import (
    Departed,
    Discard,
    Discarded,
    EndJob,
    Enter,
    Error,
    Forgotten,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Init,
    Job,
    JobEnded,
    Leave,
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
from zmqps.core.server.parked import DeferredPulls
from zmqps.errors import BY_CODE

pytestmark = pytest.mark.processes

OBSERVER = bytes(16)
#: Messages between two that are answered for certain.
MEMBERS_BATCH = 200
#: To strangers a door is open for a few KiB only, and for none who says what strangers do not say.
STRANGERS_BATCH, STRANGERS_PATIENCE_MS = 10, 20
WHOLE = tuple((slice_.index, 0, ()) for slice_ in PLACEMENT.slices[0])
ARRAYS = tuple(np.full(p.size, 7, PLACEMENT.keyspace.tables[p.table].dtype) for p in PLACEMENT.slices[0])
LARGE = np.ones(5000, "<f4")

#: Observers may ask for anything and change nothing, so whatever comes of these, the values stay.
TO_SERVER: list[Message] = [
    hello("observer", OBSERVER),
    hello("observer", OBSERVER),
    Pull(1, EPOCH, 0, 0, "raw", WHOLE),
    Pull(2, EPOCH, 0, 0, "raw", ((0, 0, ()),)),
    Push(3, 1, EPOCH, 0, 0, 1, 1, 1, "raw", "raw", (), WHOLE, ARRAYS),
    Push(4, 2, EPOCH, 0, 0, 1, 0, 0, "raw", "raw", (), ((0, 0, ()),), (LARGE,)),
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
    Lost("server", 0, "somebody", bytes(16), 1.0),
    Departed(OBSERVER, 1),
    Forgotten(OBSERVER),
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
    Forgotten(OBSERVER),
    EndJob(6, "another"),
    JobEnded(7, "ended by a stranger"),
    replace(hello("observer", bytes([8]) * 16), job="another"),
    Job(1, 1, {}, {}, 1, 0, 1, "", 0),
    Welcome(1, bytes(16), "x", 0, 1.0, 2.0, 1, 1),
    HeartbeatAck(1),
    Push(3, 1, EPOCH, 0, 0, 1, 1, 1, "raw", "raw", (), WHOLE, ARRAYS),
]
PARAMETERS = {"w": np.ones((6, 5), np.float32), "b": np.ones(4), "c": np.ones(3, np.float32)}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with live_cluster() as cluster:
        yield cluster
        assert cluster.internal_errors == 0
        assert cluster.problems == []


def flood(endpoint: str, greeting: Message, seeds: list[Message], count: int, seed: int) -> Counter[str]:
    """Send a stream as a member, in batches, each answered before the next is sent; return what the answers were."""
    answers: Counter[str] = Counter()
    with fuzzer(endpoint, b"fuzz%d" % seed) as socket:
        socket.send_multipart(encode(greeting))
        assert isinstance(decode(socket.recv_multipart()), Welcome)
        for sent, frames in enumerate(stream(seeds, count, seed), 1):
            socket.send_multipart(frames)
            answers["nothing"] += not frames[0]  # a message without a header says nothing
            if sent % MEMBERS_BATCH == 0 or sent == count:
                number = msgpack.packb([18, sent])  # not a server's business, but answered all the same
                socket.send(number)
                while True:
                    answer = decode(socket.recv_multipart())
                    assert not isinstance(answer, Error) or answer.code in BY_CODE
                    if getattr(answer, "request", None) == sent and type(answer).__name__ in ("Status", "Error"):
                        break
                    answers[type(answer).__name__] += 1
    return answers


def flood_by_strangers(endpoint: str, seeds: list[Message], count: int, seed: int) -> None:
    """Send a stream over many connections, as much as the door lets a stranger say on each."""
    frames = stream(seeds, count, seed)
    for number in range(count // STRANGERS_BATCH):
        with fuzzer(endpoint, b"stranger%d-%d" % (seed, number)) as socket:
            for message in islice(frames, STRANGERS_BATCH):
                socket.send_multipart(message)
            while socket.poll(STRANGERS_PATIENCE_MS):
                answer = decode(socket.recv_multipart())
                assert not isinstance(answer, Error) or answer.code in BY_CODE


class Waiting(DeferredPulls):
    """Counts the pulls that wait or have waited, those that took another's place because of their number, too."""

    num_pulls = 0

    def add(self, who: bytes, pull: Pull, nbytes: int, awaits: Sequence[tuple[int, int]], now: float = 0.0) -> None:
        self.num_pulls += 1
        super().add(who, pull, nbytes, awaits, now)


def be_there_twice(endpoint: str, greeting: Hello, seeds: list[Message], count: int, seed: int) -> None:
    """Be a live member that has a second connection, over which a stream comes."""
    with fuzzer(endpoint, b"first%d" % seed) as first:
        first.send_multipart(encode(greeting))
        assert isinstance(decode(first.recv_multipart()), Welcome)
        flood_by_strangers(
            endpoint, [greeting, replace(greeting, secret=OBSERVER), *seeds, Leave("closed")], count, seed
        )


def check_that_fuzzing_is_survived(cluster: Cluster, count: int) -> None:
    coordinator, server = cluster.endpoints
    few = max(40, count // 20)
    flood_by_strangers(server, TO_SERVER, few, 100)  # before anybody else is there
    flood_by_strangers(coordinator, [one for one in TO_COORDINATOR if not is_server(one)], few, 101)
    train_and_fuzz(cluster, count)
    flood_by_strangers(server, TO_SERVER, few, 102)  # after all have gone
    flood_by_strangers(coordinator, TO_COORDINATOR, few, 103)
    cluster.validate()


def is_server(message: Message) -> bool:
    """Whether a message makes its sender a server, where there is none yet."""
    return isinstance(message, Hello) and message.role == "server"


def train_and_fuzz(cluster: Cluster, count: int) -> None:
    coordinator, server = cluster.endpoints
    with (
        zmqps.connect(coordinator, timeout=allow(30.0)) as worker,
        Member(coordinator) as member,
        Member(coordinator) as twice,
    ):
        worker.init(PARAMETERS, optimizer=zmqps.optim.sgd(0.5), mode="async", timeout=allow(30.0))
        worker.push({"b": np.ones(4)})
        member.take_job()
        twice.take_job()
        stolen = worker._member.connection.thread.machine.member.identity.incarnation
        thief = hello("worker", stolen)
        before, clients = cluster.snapshot(), len(cluster.server.clients)
        members = [(server, member.hello(0), TO_SERVER), (coordinator, hello("observer", OBSERVER), TO_COORDINATOR)]
        for seed, (endpoint, greeting, seeds) in enumerate(members):
            dropped = -cluster.num_dropped
            cluster.server.tenants[EPOCH].parked = waiting = Waiting()
            answers = flood(endpoint, greeting, seeds, count, seed)
            dropped += cluster.num_dropped
            if endpoint == server:
                handled = sum(answers.values()) + dropped + waiting.num_pulls
                assert handled == count, "every message is answered, counted as dropped, or waits for a version"
            assert answers["Error"] > count / 4
            assert cluster.snapshot() == before
        strangers = [
            (server, TO_SERVER),
            (server, [thief, replace(thief, epoch=EPOCH), *TO_SERVER, Leave("closed")]),
            (coordinator, [thief, replace(thief, role="server"), *TO_COORDINATOR]),
        ]
        for seed, (endpoint, seeds) in enumerate(strangers):
            flood_by_strangers(endpoint, seeds, count // 4, seed)
            assert cluster.snapshot() == before
        be_there_twice(server, twice.hello(0), TO_SERVER, max(40, count // 20), 10)
        be_there_twice(coordinator, hello("observer", bytes([7]) * 16), TO_COORDINATOR, max(40, count // 20), 11)
        assert cluster.snapshot() == before
        assert len(cluster.server.clients) <= clients + 2, "who has no ticket is nobody"
        few = clients + 10 + count // 25  # a Hello with a damaged incarnation is somebody new to the coordinator
        assert len(cluster.coordinator.membership.members) <= min(membership.MAX_MEMBERS, few)
        worker.push({"b": np.ones(4), "c": np.ones(3, np.float32)}, timeout=allow(30.0))
        pulled = worker.pull(timeout=allow(30.0))
        np.testing.assert_array_equal(pulled["b"], np.zeros(4))
        np.testing.assert_array_equal(pulled["c"], np.full(3, 0.5))
        np.testing.assert_array_equal(pulled["w"], PARAMETERS["w"])


def test_a_live_cluster_survives_a_thousand_odd_messages(cluster: Cluster) -> None:
    check_that_fuzzing_is_survived(cluster, 200)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_live_cluster_survives_a_hundred_thousand_odd_messages(cluster: Cluster) -> None:
    check_that_fuzzing_is_survived(cluster, 20_000)


# --- those who speak no ZeroMQ ------------------------------------------------------------------

READY = ready()
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


def test_raw_tcp_clients_do_not_disturb_a_live_cluster(cluster: Cluster) -> None:
    coordinator, server = cluster.endpoints
    rng = random.Random(0)
    speeches = [*SPEECHES.values(), *(rng.randbytes(rng.randint(1, 300)) for _ in range(40))]
    with zmqps.connect(coordinator, timeout=allow(30.0)) as worker:
        worker.init(PARAMETERS, optimizer=zmqps.optim.sgd(0.5), mode="async", timeout=allow(30.0))
        before = cluster.snapshot()
        open_ones = []
        try:
            for endpoint in (coordinator, server):
                for speech in speeches:
                    client = connect(endpoint)
                    open_ones.append(client)
                    client.sendall(speech)
            pulled = worker.pull(timeout=allow(30.0))  # while they are all connected
        finally:
            for client in open_ones:
                client.close()
        np.testing.assert_array_equal(pulled["w"], PARAMETERS["w"])
        assert cluster.snapshot() == before
        assert len(cluster.server.clients) == 1, "nobody of them is known"
        worker.push({"w": PARAMETERS["w"]}, timeout=allow(30.0))


def test_a_frame_beyond_the_limit_costs_its_sender_the_connection(cluster: Cluster) -> None:
    _, server = cluster.endpoints
    with connect(server, 20) as client:
        client.sendall(NULL)
        assert receive(client, len(NULL)).startswith(b"\xff")
        client.sendall(READY)
        _, size = receive(client, 2)
        assert receive(client, size).startswith(b"\x05READY")
        client.sendall(b"\x02" + (MAX_FRAME_NBYTES + 1).to_bytes(8, "big"))  # no more than the claim
        assert client.recv(1) == b"", "the connection has ended"
    with fuzzer(server, b"honest") as honest:
        honest.send_multipart(encode(hello("observer", OBSERVER)))
        assert isinstance(decode(honest.recv_multipart()), Error), "it has no ticket, but an answer"


def test_a_peer_that_never_reads_does_not_stop_the_others(cluster: Cluster) -> None:
    coordinator, server = cluster.endpoints
    with zmqps.connect(coordinator, timeout=allow(30.0)) as worker:
        worker.init(PARAMETERS, optimizer=zmqps.optim.sgd(0.5), mode="async", timeout=allow(30.0))
        with fuzzer(server, b"deaf") as deaf, Member(coordinator) as member:
            deaf.send_multipart(encode(member.hello(0)))
            for i in range(3000):
                deaf.send_multipart(encode(Pull(i + 1, EPOCH, 0, 0, "raw", WHOLE)))
            for _ in range(20):
                worker.push({"b": np.ones(4)}, timeout=allow(30.0))
            np.testing.assert_array_equal(worker.pull(timeout=allow(30.0))["b"], np.full(4, -9.0))
