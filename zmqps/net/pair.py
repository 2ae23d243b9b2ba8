"""A connection between two blocking processes that share a secret: a ROUTER that binds, a DEALER that connects.

A stranger must pass two doors. ZeroMQ's own handshake requires a word derived from the secret (PLAIN) or, beyond this
host, a key derived from it (CURVE, which also encrypts all that follows). A peer without it gets no queue, and none of
its messages is received. Then both ends prove to each other, as in `security.proof`, that they know the secret itself:
the word alone, which a process that has taken the endpoint can learn, is not enough. The ROUTER sends only to the
connection that has proved itself. A DEALER is connected once; after a break there is a new one, and a new proof, before
anything is sent.
"""

from __future__ import annotations

import hmac
import logging
import math
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol.endpoints import is_loopback, split
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.security.proof import NONCE_NBYTES, ProofInitiator, ProofResponder, door_word
from zmqps.errors import ConfigurationError, PeerLostError, ProtocolError, ProtocolVersionError
from zmqps.keys.curve import answer_with_pair, ask_with_pair
from zmqps.net.loops import Deadline
from zmqps.net.sockets import bind_socket, speak_to
from zmqps.net.system.names import find
from zmqps.net.zeromq import readable

log = logging.getLogger("zmqps.pipeline")

#: A longer frame ends its connection. It bounds what a stranger may have half sent in each of its connections, …
MAX_FRAME_NBYTES = 4 << 20
#: … until this time ends it. An honest end needs milliseconds, and more if its host has no idle processor.
HANDSHAKE_S = 10.0
#: Connections between the first and the second door, a few KiB each; beyond this the oldest is forgotten.
MAX_ASKING = 1024
#: Seconds between two attempts to connect, doubling from the first to the second.
RETRY_S, MAX_RETRY_S = 0.05, 1.0
#: ZeroMQ never reconnects the same DEALER, which would send to whatever process has the endpoint by then.
NEVER_MS = (1 << 31) - 1

#: After this many broken handshakes in a row the other end has another key, derived from another secret.
MAX_REFUSED = 4

_ZAP = "inproc://zeromq.zap.01"
_USER = b"zmqps"
_POLLIN, _POLLOUT, _EVENTS = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.EVENTS)
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_BROKEN = _REFUSED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED


class Pair(ABC):
    """One end; used by one thread at a time.

    Attributes
    ----------
    endpoint
        The common endpoint, with the bound port.
    peer
        The other end, once it has proved itself.
    """

    def __init__(self, endpoint: str, secret: str, hello: Hello, backlog: int) -> None:
        self.endpoint = endpoint
        self.peer: Hello | None = None
        self._secret, self._hello, self._backlog = secret, hello, backlog
        self._context = zmq.Context(io_threads=1)
        self._arrived: deque[list[Any]] = deque()  # of a broken connection, or waited for
        self._heard_at = time.monotonic()
        self._lost: PeerLostError | None = None

    @abstractmethod
    def send(self, frames: Sequence[Any], timeout: float) -> bool:
        """Queue a copy of a message; False if for ``timeout`` seconds no peer was there, or no room."""

    @abstractmethod
    def receive(self, timeout: float) -> list[Any] | None:
        """Return the frames of the other end's next message, None if none came for ``timeout`` seconds."""

    @abstractmethod
    def close(self, linger: float) -> None:
        """Close it; what is queued gets ``linger`` seconds to leave."""

    def _new_socket(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, self._backlog)
        socket.setsockopt(zmq.RCVHWM, self._backlog)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_NBYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def _new_nonce(self) -> bytes:
        return secrets.token_bytes(NONCE_NBYTES)

    def _admit(self, hello: Hello) -> None:
        """Accept a proven peer; raise `PeerLostError`, from now on, if it is another one than before."""
        if self.peer is not None and hello.incarnation != self.peer.incarnation:
            self._lost = PeerLostError(
                role="worker",
                name=f"stage {self.peer.name} ({self.peer.host}, pid {self.peer.pid})",
                silent_s=round(time.monotonic() - self._heard_at, 3),
                advice="another one has taken its place; close this channel and make a new one",
            )
            raise self._lost.again()
        self.peer, self._heard_at = hello, time.monotonic()

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost.again()


class BoundPair(Pair):
    """The end that binds.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, secret: str, hello: Hello, *, backlog: int) -> None:
        super().__init__(endpoint, secret, hello, backlog)
        self._from = b""  # the routing id of the proven connection
        self._reachable = False
        self._asking: dict[bytes, ProofResponder] = {}
        self._throttle = Throttle()
        self._socket = self._new_socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        word = door_word(secret)
        if _goes_beyond(endpoint):
            word = answer_with_pair(self._socket, secret)
        else:
            self._socket.setsockopt(zmq.PLAIN_SERVER, 1)
        zap = self._context.socket(zmq.REP)
        zap.setsockopt(zmq.LINGER, 0)
        zap.bind(_ZAP)
        monitor = self._socket.get_monitor_socket(_REFUSED)
        try:
            self.endpoint = bind_socket(self._socket, endpoint)
        except BaseException:
            zap.close(0)
            monitor.close(0)
            self.close(0.0)
            raise
        door = (zap, monitor, word, self.endpoint)
        threading.Thread(target=_keep_door, args=door, name="zmqps-door", daemon=True).start()

    def send(self, frames: Sequence[Any], timeout: float) -> bool:
        """Queue a copy of a message; False if for ``timeout`` seconds no peer was there, or no room."""
        deadline = Deadline(timeout)
        while True:
            self._check()
            while not self._reachable:
                arrived = self._next(deadline)
                if arrived is None:
                    return False
                if arrived[0] == self._from:
                    self._arrived.append(arrived[1:])
                else:
                    self._hear(arrived)
            try:
                self._socket.send(self._from, zmq.SNDMORE | zmq.DONTWAIT)
            except zmq.Again:  # there is no room
                if not (wait_s := deadline.wait_s()):
                    return False
                self._socket.setsockopt(zmq.SNDTIMEO, _milliseconds(wait_s))
                try:
                    self._socket.send(self._from, zmq.SNDMORE)
                except zmq.Again:
                    continue
                except zmq.ZMQError:
                    self._reachable = False
                    continue
            except zmq.ZMQError:  # the connection broke: the other end must prove itself again
                self._reachable = False
                continue
            self._socket.send_multipart(frames)
            return True

    def receive(self, timeout: float) -> list[Any] | None:
        """Return the frames of the other end's next message, None if none came for ``timeout`` seconds."""
        self._check()
        if self._arrived:
            return self._arrived.popleft()
        deadline = Deadline(timeout)
        while (frames := self._next(deadline)) is not None:
            if frames[0] == self._from:
                self._heard_at = time.monotonic()
                return frames[1:]
            self._hear(frames)
        return None

    def close(self, linger: float) -> None:
        """Close it; what is queued gets ``linger`` seconds to leave."""
        self._socket.disable_monitor()
        self._socket.close(int(linger * 1000))
        self._context.term()  # which ends the doorkeeper thread

    def _next(self, deadline: Deadline) -> list[Any] | None:
        while not readable(self._socket):
            if not (wait_s := deadline.wait_s()):
                return None
            self._socket.poll(_milliseconds(wait_s), _POLLIN)
        return [frame.buffer for frame in self._socket.recv_multipart(copy=False)]

    def _hear(self, frames: list[Any]) -> None:
        """Take a message of an unproven connection; errors in it concern only that connection."""
        who = bytes(frames[0])
        answering = self._asking.pop(who, None)
        try:
            if answering is None:
                answering = ProofResponder(self._secret, self._new_nonce(), self._hello)
                reply = answering.reply(frames[1:])
                if len(self._asking) == MAX_ASKING:
                    del self._asking[next(iter(self._asking))]
                self._asking[who] = answering
                self._socket.send_multipart([who, *reply], zmq.DONTWAIT)
                return
            hello = answering.finish(frames[1:])
        except ProtocolVersionError:
            raise
        except (ProtocolError, zmq.ZMQError) as error:
            _say(self._throttle, f"{self.endpoint}: a connection was not heard: {error}")
            return
        self._admit(hello)
        self._from, self._reachable = who, True


class DialledPair(Pair):
    """The end that connects, and reconnects when the connection breaks.

    Raises
    ------
    ConfigurationError
        The endpoint is invalid.
    """

    def __init__(self, endpoint: str, secret: str, hello: Hello, *, backlog: int) -> None:
        super().__init__(endpoint, secret, hello, backlog)
        self._proven = False
        self._beyond = self._encrypted = False  # whether the endpoint leads to another host, as far as known
        self._num_refused = 0  # in a row
        self._retry_s = RETRY_S
        self._retry_at = math.inf  # when to replace a broken connection
        self._unnamed = False  # has reported that the endpoint's name does not resolve
        try:
            self._dial()
        except BaseException:
            self.close(0.0)
            raise

    def send(self, frames: Sequence[Any], timeout: float) -> bool:
        """Queue a copy of a message; False if for ``timeout`` seconds no peer was there, or no room."""
        deadline = Deadline(timeout)
        self._check()
        while True:
            # a DEALER takes messages for a broken connection, so the monitor is checked first
            if self._proven and not readable(self._monitor) and int(self._socket.getsockopt(_EVENTS)) & _POLLOUT:
                self._socket.send_multipart(frames)
                return True
            if not self._step(deadline, _POLLOUT if self._proven else _POLLIN):
                return False

    def receive(self, timeout: float) -> list[Any] | None:
        """Return the frames of the other end's next message, None if none came for ``timeout`` seconds."""
        deadline = Deadline(timeout)
        self._check()
        while True:
            if self._arrived:
                return self._arrived.popleft()
            if self._proven and readable(self._socket):
                self._heard_at = time.monotonic()
                return self._take()
            if not self._step(deadline, _POLLIN):
                return None

    def close(self, linger: float) -> None:
        """Close it; what is queued gets ``linger`` seconds to leave."""
        self._hang_up(linger)
        self._context.term()

    def _dial(self) -> None:
        self._retry_at = math.inf
        where = self._find()
        self._beyond = _goes_beyond(where)
        self._socket = self._new_socket(zmq.DEALER)
        if self._beyond or self._encrypted:
            ask_with_pair(self._socket, self._secret)
        else:
            self._socket.setsockopt(zmq.PLAIN_USERNAME, _USER)
            self._socket.setsockopt(zmq.PLAIN_PASSWORD, door_word(self._secret))
        self._socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        self._monitor = self._socket.get_monitor_socket(_BROKEN | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        if not where:
            self._break_off()
            return
        try:
            speak_to(self._socket, where)
            self._socket.connect(where)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot connect to {self.endpoint!r}: {error}") from None

    def _find(self) -> str:
        """Return the endpoint with an address instead of a name; empty while that does not resolve."""
        try:
            return find(self.endpoint)
        except ConfigurationError as error:
            if not self._unnamed:
                log.warning("waiting for the stage at %s: %s", self.endpoint, error)
            self._unnamed = True
            return ""

    def _hang_up(self, linger: float) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(int(linger * 1000))

    def _take(self) -> list[Any]:
        return [frame.buffer for frame in self._socket.recv_multipart(copy=False)]

    def _step(self, deadline: Deadline, wanted: int) -> bool:
        """Wait for an event, and process it; False at the deadline."""
        wait_s = deadline.wait_s()
        milliseconds = _milliseconds(min(wait_s, self._retry_at - time.monotonic()))
        ready = dict(zmq.zmq_poll([(self._socket, wanted), (self._monitor, _POLLIN)], milliseconds))
        if self._monitor in ready:
            self._note(int(recv_monitor_message(self._monitor)["event"]))
        elif self._socket in ready:
            if not self._proven:
                self._hear(self._take())
        elif time.monotonic() >= self._retry_at:
            self._hang_up(0.0)
            self._dial()
        return bool(ready) or wait_s > 0

    def _note(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._refuse()
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._num_refused = 0
            self._asking = ProofInitiator(self._secret, self._new_nonce(), self._hello)
            self._socket.send_multipart(self._asking.first())
        elif self._retry_at == math.inf:
            if event & _REFUSED:
                self._num_refused += 1
                if self._num_refused >= MAX_REFUSED:
                    self._refuse()
                if not self._beyond:  # the other end may be bound to all interfaces
                    self._encrypted = not self._encrypted
            self._break_off()

    def _refuse(self) -> None:
        self._num_refused = 0
        self._break_off()
        raise ConfigurationError(
            f"the stage at {self.endpoint} refused this one: its channel has another secret; give both the same"
        )

    def _break_off(self) -> None:
        while self._proven and readable(self._socket):  # messages before the end still count
            self._arrived.append(self._take())
        self._proven = False
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _hear(self, frames: list[Any]) -> None:
        """Process the other end's proof."""
        try:
            hello, proof = self._asking.second(frames)
        except ProtocolVersionError:
            raise
        except ProtocolError as error:
            self._break_off()
            raise ProtocolError(f"{self.endpoint} is not the stage's: {error}; nothing was sent there") from None
        self._admit(hello)
        self._socket.send_multipart(proof)
        self._proven, self._retry_s = True, RETRY_S


def _goes_beyond(endpoint: str) -> bool:
    """Whether an endpoint is beyond this host: then all is encrypted, with keys derived from the channel's secret."""
    return endpoint.startswith("tcp://") and not is_loopback(split(endpoint)[0])


def _milliseconds(seconds: float) -> int:
    return max(0, math.ceil(seconds * 1000))


def _say(throttle: Throttle, text: str) -> None:
    line = throttle.admit(text, time.monotonic())
    if line is not None:
        log.warning(line)


def _keep_door(zap: zmq.Socket[bytes], monitor: zmq.Socket[bytes], word: bytes, endpoint: str) -> None:
    """Answer ZeroMQ's authentication requests, and report refused attempts, until the context ends."""
    throttle = Throttle()
    try:
        while True:
            ready = dict(zmq.zmq_poll([(zap, _POLLIN), (monitor, _POLLIN)], 60_000))
            if zap in ready:
                version, request, _, _, _, mechanism, *credentials = zap.recv_multipart()
                shown = credentials[0] if mechanism == b"CURVE" else b"".join(credentials[1:])
                known = mechanism in (b"PLAIN", b"CURVE") and hmac.compare_digest(shown, word)
                status = (b"200", b"OK") if known else (b"400", b"unknown")
                zap.send_multipart([version, request, *status, b"", b""])
            if monitor in ready:
                recv_monitor_message(monitor)
                _say(throttle, f"{endpoint}: refused a peer that does not know the channel's secret")
    except zmq.ContextTerminated:
        pass
    finally:
        zap.close(0)
        monitor.close(0)
