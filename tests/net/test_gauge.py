"""What a connection carries, plain and encrypted, measured on loopback."""

from __future__ import annotations

import threading
import time

import pytest
import zmq

from tests.pace import allow, stretch
from tests.tables import for_each
from zmqps.errors import AddressInUseError, DeadlineError
from zmqps.net import gauge
from zmqps.net.gauge import Receiver, library, send

TOKEN = b"t" * 32


def measured(
    receiver: Receiver, *, token: bytes = TOKEN, key: str | None = None, nbytes: int = 4 << 20, timeout: float = 0.2
) -> float:
    return send(
        f"tcp://127.0.0.1:{receiver.port}", token, key=receiver.key if key is None else key, seconds=0.05,
        nbytes=nbytes, timeout=timeout,
    )  # fmt: skip


@for_each("encrypted", [False, True])
def test_bytes_arrive_and_are_counted(encrypted: bool) -> None:
    if encrypted and not library()[1]:
        pytest.skip("libzmq without CURVE")
    receiver = Receiver("127.0.0.1", 0, TOKEN, encrypted=encrypted)
    try:
        assert bool(receiver.key) is encrypted
        assert measured(receiver, timeout=allow(2.0)) > 1e6
    finally:
        receiver.close()


def test_who_does_not_know_the_token_is_not_answered() -> None:
    receiver = Receiver("127.0.0.1", 0, TOKEN, encrypted=False)
    try:
        with pytest.raises(DeadlineError, match="the probe at"):
            measured(receiver, token=b"x" * 32)
        assert measured(receiver, timeout=allow(2.0)) > 0
    finally:
        receiver.close()


def test_an_encrypted_receiver_answers_nobody_in_plain_text() -> None:
    receiver = Receiver("127.0.0.1", 0, TOKEN, encrypted=True)
    try:
        with pytest.raises(DeadlineError):
            measured(receiver, key="")
    finally:
        receiver.close()


def test_a_receiver_takes_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "MAX_RECEIVED_NBYTES", 1 << 20)
    receiver = Receiver("127.0.0.1", 0, TOKEN, encrypted=False)
    try:
        with pytest.raises(DeadlineError):
            measured(receiver, nbytes=1 << 30)
    finally:
        receiver.close()


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    receiver = Receiver("127.0.0.1", 0, TOKEN, encrypted=False)
    try:
        with pytest.raises(AddressInUseError, match=str(receiver.port)):
            Receiver("127.0.0.1", receiver.port, TOKEN, encrypted=False)
    finally:
        receiver.close()


class _Answering(threading.Thread):
    """Answers each piece only when it would have come through a slow wire."""

    def __init__(self, socket: zmq.Socket[bytes], nbytes_per_s: float) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self._socket, self._speed = socket, nbytes_per_s

    def run(self) -> None:
        while not self.ended.is_set():
            if self._socket.poll(20):
                who, data = self._socket.recv_multipart()
                self.ended.wait(len(data) / self._speed)
                self._socket.send_multipart([who, b""])


def test_a_slow_connection_takes_no_more_than_twice_its_time() -> None:
    """A receiver of 2 MB/s: what is on the way when time is over is little."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as slow:
        slow.setsockopt(zmq.LINGER, 0)
        port = slow.bind_to_random_port("tcp://127.0.0.1")
        thread = _Answering(slow, 2e6)
        thread.start()
        begun = time.perf_counter()
        rate = send(f"tcp://127.0.0.1:{port}", TOKEN, key="", seconds=0.1, nbytes=1 << 30, timeout=2.0)
        took = time.perf_counter() - begun
        thread.ended.set()
        thread.join()
    assert rate < 4e6
    assert took < min(4.0, stretch(1.0))  # unbounded it would be 16 MiB on the way, 8 s
