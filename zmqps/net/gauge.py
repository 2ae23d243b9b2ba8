"""The rate of one connection through ZeroMQ, plain or encrypted: a receiver and its sender.

The sender hardly ever has more in flight than has arrived already, so a slow connection does not take much longer than
a fast one.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections import deque

import zmq

from zmqps.errors import DeadlineError
from zmqps.net.sockets import bind_socket

#: One message: small at first, for a slow connection; then as large as zmqps's own.
MIN_CHUNK_NBYTES, MAX_CHUNK_NBYTES = 16 << 10, 1 << 20
#: In flight at the start: 10 Mbit/s carry it in 0.2 s.
FIRST_WINDOW_NBYTES = 256 << 10
#: What encryption adds to a message, and more.
OVERHEAD_NBYTES = 1024
#: In flight at most: keeps 10 Gbit/s busy over 10 ms.
MAX_WINDOW_NBYTES = 16 << 20
#: A peer that sends more is not a gauge.
MAX_RECEIVED_NBYTES = 1 << 30
#: How often a receiver checks whether to stop.
TICK_S = 0.05


def library() -> tuple[str, bool]:
    """Return libzmq's version, and whether it can encrypt."""
    return zmq.zmq_version(), bool(zmq.has("curve"))


class Receiver:
    """Receives from the one sender with the token, and acknowledges each piece.

    Parameters
    ----------
    host
        The address to bind, as in an endpoint; ``*`` for all.
    port
        The port; 0 for any.
    token
        The sender's first message; others are not answered.
    encrypted
        Whether to use CURVE; a sender then needs `key`.

    Raises
    ------
    AddressInUseError
        The port is in use.
    """

    def __init__(self, host: str, port: int, token: bytes, *, encrypted: bool) -> None:
        self.key = ""
        self._token = token
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._limit(self._socket)
        self._socket.setsockopt(zmq.IPV6, 1)
        if encrypted:
            public, secret = zmq.curve_keypair()
            self._socket.curve_server = True
            self._socket.curve_secretkey, self._socket.curve_publickey = secret, public
            self.key = public.decode()
        try:
            self.port = int(bind_socket(self._socket, f"tcp://{host}:{port}").rpartition(":")[2])
        except BaseException:
            self._context.destroy(0)
            raise
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zmqps-gauge", daemon=True)
        self._thread.start()

    @staticmethod
    def _limit(socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_CHUNK_NBYTES + OVERHEAD_NBYTES)
        socket.setsockopt(zmq.RCVHWM, MAX_WINDOW_NBYTES // MAX_CHUNK_NBYTES)
        socket.setsockopt(zmq.LINGER, 0)

    def close(self) -> None:
        """Stop receiving."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        sender, left = None, MAX_RECEIVED_NBYTES
        with self._context, self._socket:
            while not self._ended.is_set() and left > 0:
                if not self._socket.poll(int(1000 * TICK_S)):
                    continue
                who, *parts = self._socket.recv_multipart()
                if sender is None and hmac.compare_digest(b"".join(parts), self._token):
                    sender = who
                elif who != sender:
                    continue
                left -= sum(map(len, parts))
                self._socket.send_multipart([who, b""], zmq.DONTWAIT)


def send(endpoint: str, token: bytes, *, key: str, seconds: float, nbytes: int, timeout: float) -> float:
    """Send to a `Receiver` for a while; return the bytes per second that arrived.

    Parameters
    ----------
    endpoint, token
        Its endpoint and its token.
    key
        Its public key; empty to send in plain text.
    seconds, nbytes
        When to end, whichever comes first. It takes at most twice as long.
    timeout
        Seconds to wait for the next answer.

    Raises
    ------
    DeadlineError
        Nothing arrived in that time.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        if key:
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.curve_serverkey = key.encode()
        socket.connect(endpoint)
        socket.send(token)
        _answers(socket, endpoint, timeout)
        return _rate(socket, endpoint, seconds, nbytes, timeout)


def _rate(socket: zmq.Socket[bytes], endpoint: str, seconds: float, nbytes: int, timeout: float) -> float:
    """Return the rate of the second half: in the first half the window was small."""
    data = memoryview(bytes(MAX_CHUNK_NBYTES))
    begun = time.perf_counter()
    half: tuple[float, int] | None = None
    on_the_way: deque[int] = deque()
    sent = arrived = 0
    while True:
        now = time.perf_counter()
        if half is None and (now - begun > seconds / 2 or arrived >= nbytes / 2):
            half = now, arrived
        going_on = now - begun < seconds and sent < nbytes
        if not going_on and not on_the_way:
            since, early = half if half and arrived - half[1] >= arrived / 4 else (begun, 0)
            return (arrived - early) / max(now - since, 1e-9)
        chunk = max(MIN_CHUNK_NBYTES, min(MAX_CHUNK_NBYTES, arrived // 8))
        while going_on and sent - arrived < max(FIRST_WINDOW_NBYTES, min(MAX_WINDOW_NBYTES, arrived)):
            socket.send(data[:chunk], copy=False)
            on_the_way.append(chunk)
            sent += chunk
        for _ in range(_answers(socket, endpoint, timeout)):
            arrived += on_the_way.popleft()


def _answers(socket: zmq.Socket[bytes], endpoint: str, timeout: float) -> int:
    """Wait for an answer; return the number of answers."""
    if not socket.poll(int(1000 * timeout)):
        raise DeadlineError(operation="doctor", seconds=timeout, waiting_for=f"an answer of the probe at {endpoint}")
    number = 0
    while socket.poll(0):
        socket.recv()
        number += 1
    return number
