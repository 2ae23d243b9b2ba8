"""Two ends that share a secret, and strangers at their endpoint: on real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import zmq

from tests.net.system.test_addresses import needs_ipv6
from tests.pace import allow
from tests.tables import for_each
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.security.proof import MARK, NONCE_NBYTES, ProofInitiator, door_word
from zmqps.errors import AddressInUseError, ConfigurationError, PeerLostError, ProtocolError, UnresolvedNameError
from zmqps.net import pair
from zmqps.net.identity import new_identity
from zmqps.net.pair import HANDSHAKE_S, MAX_FRAME_NBYTES, BoundPair, DialledPair, Pair

SECRET = "what both ends know"
ANY = "tcp://127.0.0.1:0"
NOISE = b"\x00noise" * 50


def hello(name: str) -> Hello:
    return new_identity("worker", name=name).hello()


@contextmanager
def bound(endpoint: str = ANY, name: str = "head") -> Iterator[BoundPair]:
    end = BoundPair(endpoint, SECRET, hello(name), backlog=16)
    try:
        yield end
    finally:
        end.close(0.0)


@contextmanager
def dialled(endpoint: str, secret: str = SECRET, name: str = "tail") -> Iterator[DialledPair]:
    end = DialledPair(endpoint, secret, hello(name), backlog=16)
    try:
        yield end
    finally:
        end.close(0.0)


@contextmanager
def stranger(endpoint: str, word: bytes | None = None) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER that merely connects, or that knows the word at the door."""
    with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        if word is not None:
            dealer.setsockopt(zmq.PLAIN_USERNAME, b"zmqps")
            dealer.setsockopt(zmq.PLAIN_PASSWORD, word)
        dealer.connect(endpoint)
        yield dealer


def raw(endpoint: str) -> socket.socket:
    url = urlsplit(endpoint)
    return socket.create_connection((url.hostname, url.port), timeout=allow(20))


def payload(frames: list[memoryview] | None) -> list[bytes]:
    assert frames is not None
    return [bytes(frame) for frame in frames]


def talk(head: Pair, tail: Pair, rounds: int = 5) -> None:
    """Send messages there and back, each of two frames, and check that they are those that were sent."""

    def answer() -> None:
        for _ in range(rounds):
            assert tail.send(payload(tail.receive(20.0)), 20.0)

    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        for number in range(rounds):
            message = [b"%d" % number, bytes([number]) * 100_000]
            assert head.send(message, 20.0)
            assert payload(head.receive(20.0)) == message
        answered.result(timeout=allow(20))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + allow(20)
    while not happened():
        assert time.monotonic() < deadline


def test_both_learn_who_the_other_is(tmp_path: Path) -> None:
    for endpoint in (ANY, f"ipc://{tmp_path}/pair"):
        with bound(endpoint) as head, dialled(head.endpoint) as tail:
            talk(head, tail)
            assert head.peer is not None
            assert tail.peer is not None
            assert (head.peer.name, tail.peer.name) == ("tail", "head")


@needs_ipv6
def test_over_ipv6() -> None:
    with bound("tcp://[::1]:0") as head, dialled(head.endpoint) as tail:
        talk(head, tail)


def test_by_a_name_that_resolves_later(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with bound() as head:
        answers: list[str | None] = [None, None, head.endpoint]

        def find(endpoint: str) -> str:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer is None:
                raise UnresolvedNameError(name="stage", host="here", why="not known")
            return answer

        monkeypatch.setattr(pair, "find", find)
        with dialled("tcp://stage:5570") as tail:
            talk(head, tail)
    assert [record.message for record in caplog.records if "does not resolve" in record.message] == [
        "waiting for the stage at tcp://stage:5570: the name 'stage' does not resolve on here (not known); check its "
        "spelling, or write the address"
    ]


def test_the_end_that_dials_may_be_first(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/pair"
    with dialled(endpoint) as tail:
        assert tail.receive(0.05) is None
        with bound(endpoint) as head:
            talk(head, tail)


def test_a_taken_endpoint_leaves_nothing_behind() -> None:
    with bound() as head, pytest.raises(AddressInUseError), bound(head.endpoint):
        pass


# --- strangers ----------------------------------------------------------------------------------


def test_strangers_before_and_during_a_conversation_change_nothing() -> None:
    with ExitStack() as stack:
        head = stack.enter_context(bound())
        early = stack.enter_context(stranger(head.endpoint))
        early.send_multipart([NOISE, b""])
        tail = stack.enter_context(dialled(head.endpoint))
        talk(head, tail)
        late = stack.enter_context(stranger(head.endpoint))
        guess = stack.enter_context(stranger(head.endpoint, b"a guess"))
        for dealer in (late, guess):
            dealer.send_multipart([MARK, bytes(NONCE_NBYTES), NOISE])
        talk(head, tail, rounds=50)
        assert not any(dealer.poll(0) for dealer in (early, late, guess)), "nothing was sent to them"


HALF_SENT = [
    b"",
    b"\xff",
    b"GET / HTTP/1.1\r\n\r\n",
    NOISE * 1000,
    b"\xff\0\0\0\0\0\0\0\1\x7f\3\0PLAIN",
    b"\xff\0\0\0\0\0\0\0\1\x7f\3\0" + b"PLAIN".ljust(20, b"\0") + bytes(32) + b"\2" + (1 << 40).to_bytes(8, "big"),
    b"\xff\0\0\0\0\0\0\0\1\x7f\3\0" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\4\5\5READY",
    b"\xff\0\0\0\0\0\0\0\1\x7f\1\0" + NOISE,
]


def test_what_is_no_handshake_or_half_of_one_changes_nothing() -> None:
    with ExitStack() as stack:
        head = stack.enter_context(bound())
        tail = stack.enter_context(dialled(head.endpoint))
        talk(head, tail)
        for data in HALF_SENT * 5:
            stack.enter_context(connection := raw(head.endpoint))
            with contextlib.suppress(ConnectionError):  # it may be closed already
                connection.sendall(data)
        talk(head, tail, rounds=50)


@for_each("nbytes, closed", [(MAX_FRAME_NBYTES, False), (MAX_FRAME_NBYTES + 1, True)])
def test_a_stranger_may_announce_no_frame_beyond_the_limit(nbytes: int, closed: bool) -> None:
    plain = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0" + b"PLAIN".ljust(20, b"\0") + bytes(32)
    with bound() as head, raw(head.endpoint) as connection:
        connection.settimeout(HANDSHAKE_S / 10 if not closed else HANDSHAKE_S / 2)
        connection.sendall(plain + b"\6" + nbytes.to_bytes(8, "big"))
        try:
            while connection.recv(1024):  # until it is closed
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            assert not closed
            return
        assert closed


def test_a_flood_of_strangers_changes_nothing() -> None:
    stop = threading.Event()

    def flood(endpoint: str, data: bytes) -> int:
        count = 0
        while not stop.is_set():
            with contextlib.suppress(OSError), raw(endpoint) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                count += 1
                while connection.recv(4096):
                    pass
        return count

    with bound() as head, dialled(head.endpoint) as tail, ThreadPoolExecutor(2) as pool:
        talk(head, tail)
        floods = [pool.submit(flood, head.endpoint, data) for data in (NOISE * 100, HALF_SENT[-2])]
        try:
            talk(head, tail, rounds=200)
        finally:
            stop.set()
        assert all(flooded.result(timeout=allow(20)) > 0 for flooded in floods)


def test_one_that_knows_the_word_at_the_door_is_not_heard_without_a_proof(caplog: pytest.LogCaptureFixture) -> None:
    word = door_word(SECRET)
    with ExitStack() as stack:
        head = stack.enter_context(bound())
        insiders = [stack.enter_context(stranger(head.endpoint, word)) for _ in range(16)]
        for insider in insiders:
            insider.send_multipart([NOISE])
            insider.send_multipart(ProofInitiator("a guess", bytes(NONCE_NBYTES), hello("evil")).first())
        tail = stack.enter_context(dialled(head.endpoint))
        talk(head, tail)
        for insider in insiders:
            insider.send_multipart([MARK, bytes(NONCE_NBYTES)])
            insider.send_multipart([b"a tensor"])
        talk(head, tail, rounds=50)
        for insider in insiders:
            while insider.poll(0):
                assert insider.recv_multipart()[0] == MARK, "it is asked for its proof, and sent nothing else"
        # what they have said comes over connections of their own, perhaps after all that
        until(lambda: head.receive(0.01) is None and "a stage proves first" in caplog.text)


# --- who has taken the endpoint -----------------------------------------------------------------


class Impostor:
    """Lets everybody in, as a process does that has taken a stage's endpoint, and keeps what it is sent."""

    def __init__(self, endpoint: str = ANY) -> None:
        self._context = zmq.Context(io_threads=1)
        self.heard: list[bytes] = []
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.PLAIN_SERVER, 1)
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        self._router.bind(endpoint)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(zmq.ContextTerminated):
            while True:
                ready = dict(zmq.zmq_poll([(self._zap, zmq.POLLIN), (self._router, zmq.POLLIN)], 20_000))
                if self._zap in ready:
                    _, request, *_ = self._zap.recv_multipart()
                    self._zap.send_multipart([b"1.0", request, b"200", b"OK", b"", b""])
                if self._router in ready:
                    who, *frames = self._router.recv_multipart()
                    self.heard += frames
                    self._router.send_multipart([who, MARK, bytes(NONCE_NBYTES), frames[2], bytes(NONCE_NBYTES)])
        self._router.close(0)
        self._zap.close(0)

    def close(self) -> None:
        self._context.term()
        self._thread.join(allow(20))


def test_nothing_is_sent_to_a_process_that_has_taken_the_endpoint() -> None:
    with closing(Impostor()) as impostor, dialled(impostor.endpoint) as tail:
        for _ in range(2):
            with pytest.raises(ProtocolError, match="does not know the channel's secret; nothing was sent"):
                tail.send([b"a tensor"], 20.0)
        assert b"a tensor" not in impostor.heard
        assert impostor.heard[:1] == [MARK]


def test_nor_is_it_when_the_stage_died_in_the_middle_and_its_port_was_taken() -> None:
    with ExitStack() as stack:
        gone = stack.enter_context(ExitStack())
        head = gone.enter_context(bound())
        tail = stack.enter_context(dialled(head.endpoint))
        talk(head, tail)
        gone.close()
        impostor = stack.enter_context(closing(Impostor(head.endpoint)))

        def send_without_end() -> None:
            while True:
                assert tail.send([b"a tensor"], 20.0)

        with pytest.raises(ProtocolError, match="nothing was sent"):
            send_without_end()
        assert b"a tensor" not in impostor.heard


def test_another_secret_is_told_at_once_and_again() -> None:
    with bound() as head, dialled(head.endpoint, "another secret") as tail:
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="another secret"):
                tail.receive(20.0)


# --- connections that break ---------------------------------------------------------------------


class Cable:
    """Forwards one connection after the other to an endpoint, and can be cut."""

    def __init__(self, endpoint: str) -> None:
        self._there = endpoint
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, there = self._listener.accept()[0], raw(self._there)
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    pump = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
                    self._threads.append(pump)
                    pump.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(60)
            while data := source.recv(1 << 16):
                sink.sendall(data)

    def cut(self) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(allow(20))
        for connection in self._open:
            connection.close()


def test_the_same_two_go_on_after_a_break() -> None:
    with bound() as head, closing(Cable(head.endpoint)) as cable, dialled(cable.endpoint) as tail:
        for _ in range(4):
            talk(head, tail)
            cable.cut()
            meet_again(head, tail, head._from)
        talk(head, tail)


def meet_again(head: BoundPair, tail: DialledPair, before: bytes) -> None:
    with ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(until, lambda: tail.receive(0.05) is not None or head._from != before)
        until(lambda: head.receive(0.05) is not None or head._from != before)
        meeting.result(timeout=allow(20))


def test_connections_that_never_prove_anything_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "MAX_ASKING", 3)
    with ExitStack() as stack:
        head = stack.enter_context(bound())
        for _ in range(8):
            insider = stack.enter_context(stranger(head.endpoint, door_word(SECRET)))
            insider.send_multipart(ProofInitiator("a guess", bytes(NONCE_NBYTES), hello("evil")).first())
            until(lambda insider=insider: head.receive(0.01) is None and bool(insider.poll(0)))
        assert len(head._asking) == 3
        talk(head, stack.enter_context(dialled(head.endpoint)))


def test_another_one_in_its_place_is_told_and_nothing_is_sent_to_it() -> None:
    with bound() as head:
        with dialled(head.endpoint) as tail:
            talk(head, tail)
        told = threading.Event()

        def listen() -> set[bool]:
            """Prove who it is, which it does while it waits, and go on until the other end has been told."""
            received = {second.receive(0.05) is not None}
            while not told.is_set():
                received.add(second.receive(0.05) is not None)
            return received

        with dialled(head.endpoint, name="second") as second, ThreadPoolExecutor(1) as pool:
            listening = pool.submit(listen)
            try:
                with pytest.raises(PeerLostError, match=r"stage tail \(.* another one has taken its place"):
                    head.receive(allow(20.0))
                with pytest.raises(PeerLostError):
                    head.send([b"a tensor"], 1.0)
            finally:
                told.set()
            assert listening.result(timeout=allow(20)) == {False}


def test_what_was_sent_before_the_end_is_received_after_it() -> None:
    with ExitStack() as stack:
        head = BoundPair(ANY, SECRET, hello("head"), backlog=16)
        tail = stack.enter_context(dialled(head.endpoint))
        talk(head, tail)
        for number in range(10):
            assert head.send([b"%d" % number, bytes(50_000)], 20.0)
        head.close(20.0)  # returns when all of it has left
        assert [payload(tail.receive(20.0))[0] for _ in range(10)] == [b"%d" % number for number in range(10)]
        assert tail.receive(0.05) is None


def test_and_so_is_what_the_end_that_dialled_has_sent() -> None:
    with bound() as head:
        tail = DialledPair(head.endpoint, SECRET, hello("tail"), backlog=16)
        talk(head, tail)
        for number in range(10):
            assert tail.send([b"%d" % number, bytes(50_000)], 20.0)
        tail.close(20.0)
        assert [payload(head.receive(20.0))[0] for _ in range(10)] == [b"%d" % number for number in range(10)]
        until(lambda: not head.send([b"to nobody"], 0.05))  # as soon as ZeroMQ has seen the connection end
