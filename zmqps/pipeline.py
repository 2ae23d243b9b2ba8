"""Channels between worker processes that each hold some layers of a model.

A replica of the model is then several workers, its *stages*. Each pulls and pushes its own parameters
only, and sends its neighbours activations one way and their gradients the other::

    channel = zmqps.pipeline.bind("ipc:///tmp/replica-0")       # the first stage …
    channel.send({"hidden": hidden})
    d_hidden = channel.receive()["hidden"]

    channel = zmqps.pipeline.connect("ipc:///tmp/replica-0")    # … and the second one, in either order
    hidden = channel.receive()["hidden"]
    channel.send({"hidden": d_hidden})

Both agree on the endpoint beforehand, say by the command line. docs/model-parallel.md shows all of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from zmqps import checks
from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import check_codec
from zmqps.core.protocol.hello import check_hello
from zmqps.core.protocol.messages import Hello, Message, Tensors
from zmqps.core.protocol.parcel import pack, unpack
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import ClosedError, DeadlineError, PeerLostError, ProtocolError
from zmqps.net.identity import check_bind, check_endpoint, new_identity
from zmqps.net.zeromq import DealerPair

__all__ = ["Channel", "bind", "connect"]

DEFAULT_TIMEOUT = 60.0
#: Messages that may wait at each end: enough for the micro-batches in flight between two stages.
BACKLOG = 16
#: How long the last message may take to leave when a channel is closed.
LINGER_S = 1.0


class Channel:
    """One end of a connection between two stages; made by `bind` and `connect`.

    Messages arrive whole and in order, or `receive` raises. Use a channel from one thread at a time.

    Attributes
    ----------
    endpoint : str
        Where the stages meet; of the end that binds, with the port it got.
    """

    def __init__(self, endpoint: str, *, bind: bool, name: str | None, codec: str | Codec, timeout: float) -> None:
        self._codec = check_codec(codec, pulls=True)
        self._timeout = checks.seconds("a timeout", timeout)
        self._binds = bind
        self._hello = new_identity("worker", name=name).hello()
        self._said_hello = False
        self._peer: Hello | None = None
        self._heard_at = time.monotonic()
        self._num_sent = self._num_received = 0
        self._closed = False
        self._pair = DealerPair(endpoint, bind=bind, backlog=BACKLOG)
        self.endpoint = self._pair.endpoint

    @property
    def peer(self) -> str:
        """The other end's name in errors."""
        if self._peer is not None:
            return f"stage {self._peer.name} ({self._peer.host}, pid {self._peer.pid})"
        return f"a stage to connect to {self.endpoint}" if self._binds else f"the stage at {self.endpoint}"

    def send(
        self, arrays: Mapping[str, Any], *, codec: str | Codec | None = None, timeout: float | None = None
    ) -> None:
        """Send arrays to the other stage; return when they are on their way, and free to be written to.

        Parameters
        ----------
        arrays : mapping of str to array
            Booleans, integers and floats of any shape.
        codec : Codec or str, optional
            How float32 and float64 travel: ``raw``, ``bf16``, ``fp16`` or ``int8``; by default the
            channel's. What is small goes raw.
        timeout : float, optional
            Seconds to wait for the other stage, or for it to read what was sent before; by default
            the channel's.

        Raises
        ------
        DeadlineError
            Names the other stage; nothing was sent.
        PeerLostError
            The other stage was started again: both need a new channel.
        ConfigurationError, LimitError
            What was given cannot be sent.
        """
        deadline = self._deadline(timeout)
        chosen = self._codec if codec is None else check_codec(codec, pulls=True)
        frames = encode(pack(self._num_sent + 1, arrays, chosen))
        self._greet("send", deadline)
        self._send("send", frames, deadline)
        self._num_sent += 1

    def receive(self, *, timeout: float | None = None) -> dict[str, Array]:
        """Return the next arrays of the other stage, new ones that may be written to.

        Raises
        ------
        DeadlineError
            Names the other stage; what it sends later is still received.
        PeerLostError
            The other stage was started again: both need a new channel.
        ProtocolError
            What came is not a message of the other stage, or one before it was lost with the connection.
        """
        deadline = self._deadline(timeout)
        self._greet("receive", deadline)
        message = self._receive("receive", deadline)
        if isinstance(message, Hello):
            silent = round(time.monotonic() - self._heard_at, 3)
            advice = "another one has taken its place; close this channel and make a new one"
            raise PeerLostError(role="worker", name=self.peer, silent_s=silent, advice=advice)
        if not isinstance(message, Tensors):
            raise ProtocolError(f"a stage does not send {type(message).__name__}")
        if message.number != self._num_received + 1:
            raise ProtocolError(
                f"{self.peer} sent message {message.number}, expected {self._num_received + 1}: "
                "some were lost with the connection; close this channel and make a new one"
            )
        arrays = unpack(message)
        self._num_received += 1
        self._heard_at = time.monotonic()
        return arrays

    def close(self) -> None:
        """Close this end; what was sent still has a second to leave."""
        if not self._closed:
            self._closed = True
            self._pair.close(LINGER_S)

    def _deadline(self, timeout: float | None) -> tuple[float, float]:
        if self._closed:
            raise ClosedError("the channel is closed")
        seconds = self._timeout if timeout is None else checks.seconds("a timeout", timeout)
        return time.monotonic() + seconds, seconds

    def _greet(self, operation: str, deadline: tuple[float, float]) -> None:
        """Learn who is at the other end, once; both say hello first, so neither waits for the other's question."""
        if not self._said_hello:
            self._send(operation, encode(self._hello), deadline)
            self._said_hello = True
        if self._peer is None:
            hello = self._receive(operation, deadline)
            if not isinstance(hello, Hello):
                raise ProtocolError(f"{type(hello).__name__} before Hello")
            check_hello(hello, ("worker",))
            self._peer, self._heard_at = hello, time.monotonic()

    def _send(self, operation: str, frames: list[Any], deadline: tuple[float, float]) -> None:
        if not self._pair.send(frames, max(0.0, deadline[0] - time.monotonic())):
            raise DeadlineError(operation=operation, seconds=deadline[1], waiting_for=self.peer)

    def _receive(self, operation: str, deadline: tuple[float, float]) -> Message:
        frames = self._pair.receive(max(0.0, deadline[0] - time.monotonic()))
        if frames is None:
            raise DeadlineError(operation=operation, seconds=deadline[1], waiting_for=self.peer)
        return decode(frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<zmqps.pipeline.Channel to {self.peer}{' closed' if self._closed else ''}>"


def bind(
    endpoint: str,
    *,
    name: str | None = None,
    codec: str | Codec = "raw",
    timeout: float = DEFAULT_TIMEOUT,
    insecure: bool = False,
) -> Channel:
    """Open the end of a channel that the other stage connects to.

    Parameters
    ----------
    endpoint : str
        ``ipc://PATH`` on one host, ``tcp://HOST:PORT`` between two; with port 0 a free one, which
        ``channel.endpoint`` tells.
    name : str, optional
        This stage's name in the other's errors; by default made of host and pid.
    codec : Codec or str
        How floats travel from here, where a call does not say otherwise.
    timeout : float
        Seconds that `Channel.send` and `Channel.receive` wait at most.
    insecure : bool
        Listen beyond this host: nothing is encrypted or authenticated.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound.
    """
    check_bind(endpoint, insecure=insecure)
    return Channel(endpoint, bind=True, name=name, codec=codec, timeout=timeout)


def connect(
    endpoint: str, *, name: str | None = None, codec: str | Codec = "raw", timeout: float = DEFAULT_TIMEOUT
) -> Channel:
    """Open the other end of a channel; the stage that binds it may be started later. Parameters as for `bind`."""
    check_endpoint(endpoint)
    return Channel(endpoint, bind=False, name=name, codec=codec, timeout=timeout)
