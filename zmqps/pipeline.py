"""Channels between worker processes that each hold some layers of a model.

A replica of the model consists of several workers, its *stages*. Each pulls and pushes only its own parameters, and
exchanges activations and their gradients with its neighbours::

    channel = zmqps.pipeline.bind("ipc:///tmp/replica-0")       # the first stage …
    channel.send({"hidden": hidden})
    d_hidden = channel.receive()["hidden"]

    channel = zmqps.pipeline.connect("ipc:///tmp/replica-0")    # … and the second one, in either order
    hidden = channel.receive()["hidden"]
    channel.send({"hidden": d_hidden})

Both know the endpoint beforehand, such as from a flag, and a secret, which the workers of one ``zmqps up`` find in
``ZMQPS_CHANNEL_SECRET``. A process without the secret can neither receive nor send anything.
docs/model-parallel.md has the details.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from zmqps import checks
from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import check_codec
from zmqps.core.protocol.endpoints import check_endpoint
from zmqps.core.protocol.messages import Tensors
from zmqps.core.protocol.parcel import pack, unpack
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, LimitError, ProtocolError
from zmqps.net.identity import new_identity
from zmqps.net.pair import MAX_FRAME_NBYTES, BoundPair, DialledPair

__all__ = ["Channel", "bind", "connect"]

DEFAULT_TIMEOUT = 60.0
#: Messages that may wait at each end: enough for the micro-batches in flight between two stages.
BACKLOG = 16
#: How long the last message may take to leave when a channel is closed.
LINGER_S = 1.0
#: Where both ends look for the secret that neither call nor endpoint has.
VARIABLE = "ZMQPS_CHANNEL_SECRET"
#: Shorter ones can be guessed; `secrets.token_hex(16)` makes 32.
MIN_SECRET_CHARS = 16
#: The secret that `bind` makes if none was given; it follows the endpoint that `bind` returns.
TOKEN = re.compile(r"(.+)#([0-9a-f]{32})")


class Channel:
    """One end of a connection between two stages; made by `bind` and `connect`.

    Messages arrive complete and in order, or `receive` raises. Use a channel from one thread at a time.

    Attributes
    ----------
    endpoint : str
        Where the stages meet; at the end that binds, with the actual port. If `bind` has made the channel's secret, it
        follows a ``#``: pass it on to `connect`, and keep it secret.
    """

    def __init__(
        self, endpoint: str, *, bind: bool, secret: str | None, name: str | None, codec: str | Codec, timeout: float
    ) -> None:
        self._codec = check_codec(codec, pulls=True)
        self._timeout = checks.seconds("a timeout", timeout)
        if name is not None:
            checks.name("a stage's name", name)
        self._binds = bind
        self._num_sent = self._num_received = 0
        self._closed = False
        where, known, token = _read_secret(endpoint, secret, makes=bind)
        hello = new_identity("worker", name=name).hello()
        self._pair = (BoundPair if bind else DialledPair)(where, known, hello, backlog=BACKLOG)
        self.endpoint = self._pair.endpoint + token

    @property
    def peer(self) -> str:
        """The other end's name in errors."""
        if (peer := self._pair.peer) is not None:
            return f"stage {peer.name} ({peer.host}, pid {peer.pid})"
        where = self._pair.endpoint
        return f"a stage to connect to {where}" if self._binds else f"the stage at {where}"

    def send(
        self, arrays: Mapping[str, Any], *, codec: str | Codec | None = None, timeout: float | None = None
    ) -> None:
        """Send arrays to the other stage; return when they are in flight and may be written to.

        Parameters
        ----------
        arrays : mapping of str to array
            Booleans, integers and floats of any shape.
        codec : Codec or str, optional
            How float32 and float64 travel, a codec without error feedback; by default the channel's. Small arrays
            travel raw.
        timeout : float, optional
            Seconds to wait for the other stage, or for it to read earlier messages; by default the channel's.

        Raises
        ------
        DeadlineError
            Names the other stage; nothing was sent.
        PeerLostError
            The other stage was restarted: both need a new channel.
        ConfigurationError, LimitError
            The arrays cannot be sent, or the other end has another secret.
        """
        seconds = self._seconds(timeout)
        chosen = self._codec if codec is None else check_codec(codec, pulls=True)
        frames = encode(pack(self._num_sent + 1, arrays, chosen))
        if len(frames[0]) > MAX_FRAME_NBYTES:
            raise LimitError(what="size of the arrays' names", got=len(frames[0]), limit=MAX_FRAME_NBYTES)
        if not self._pair.send(frames, seconds):
            raise DeadlineError(operation="send", seconds=seconds, waiting_for=self.peer)
        self._num_sent += 1

    def receive(self, *, timeout: float | None = None) -> dict[str, Array]:
        """Return the next arrays of the other stage, as new arrays.

        Raises
        ------
        DeadlineError
            Names the other stage; what it sends later is still received.
        PeerLostError
            The other stage was restarted: both need a new channel.
        ProtocolError
            The message is not of the other stage, or an earlier one was lost with the connection.
        """
        seconds = self._seconds(timeout)
        frames = self._pair.receive(seconds)
        if frames is None:
            raise DeadlineError(operation="receive", seconds=seconds, waiting_for=self.peer)
        message = decode(frames)
        if not isinstance(message, Tensors):
            raise ProtocolError(f"a stage does not send {type(message).__name__}")
        if message.number != self._num_received + 1:
            raise ProtocolError(
                f"{self.peer} sent message {message.number}, expected {self._num_received + 1}: "
                "some were lost with the connection; close this channel and make a new one"
            )
        arrays = unpack(message)
        self._num_received += 1
        return arrays

    def close(self) -> None:
        """Close this end; sent messages have one more second to leave."""
        if not self._closed:
            self._closed = True
            self._pair.close(LINGER_S)

    def _seconds(self, timeout: float | None) -> float:
        if self._closed:
            raise ClosedError("the channel is closed")
        return self._timeout if timeout is None else checks.seconds("a timeout", timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<zmqps.pipeline.Channel to {self.peer}{' closed' if self._closed else ''}>"


def _read_secret(endpoint: str, secret: str | None, *, makes: bool) -> tuple[str, str, str]:
    """Return the endpoint alone, the channel's secret, and what is shown of that behind the endpoint."""
    found = TOKEN.fullmatch(endpoint)
    where, token = found.groups() if found else (endpoint, "")
    if secret is None and not token:
        secret = os.environ.get(VARIABLE)
    if secret is not None:
        if not isinstance(secret, str) or len(secret) < MIN_SECRET_CHARS:
            raise ConfigurationError(
                f"a channel's secret has {MIN_SECRET_CHARS} characters or more; secrets.token_hex(16) makes one"
            )
        return where, secret, ""
    if not token and not makes:
        raise ConfigurationError(
            f"the channel at {where} has a secret: connect to the endpoint that channel.endpoint tells where it was "
            f"bound, or give both ends the same one, by secret= or {VARIABLE}"
        )
    token = token or secrets.token_hex(16)
    return where, token, f"#{token}"


def bind(
    endpoint: str,
    *,
    secret: str | None = None,
    name: str | None = None,
    codec: str | Codec = "raw",
    timeout: float = DEFAULT_TIMEOUT,
) -> Channel:
    """Open the end of a channel that the other stage connects to.

    Parameters
    ----------
    endpoint : str
        ``ipc://PATH`` on one host, ``tcp://HOST:PORT`` between two; port 0 takes a free one, which
        ``channel.endpoint`` names.
    secret : str, optional
        A secret of the two stages, of 16 characters or more; by default the one in the endpoint (``#`` and 32
        hexadecimal digits), or in ``ZMQPS_CHANNEL_SECRET``. Without any, `bind` makes one, and ``channel.endpoint`` has
        it for `connect`.
    name : str, optional
        This stage's name in the other's errors; by default made of host and pid.
    codec : Codec or str
        How floats travel from here, unless a call names another codec.
    timeout : float
        The longest time in seconds that `Channel.send` and `Channel.receive` wait.

    Raises
    ------
    AddressInUseError, ConfigurationError
        The endpoint cannot be bound, or the secret is too short.
    """
    check_endpoint(_place(endpoint))
    return Channel(endpoint, bind=True, secret=secret, name=name, codec=codec, timeout=timeout)


def connect(
    endpoint: str,
    *,
    secret: str | None = None,
    name: str | None = None,
    codec: str | Codec = "raw",
    timeout: float = DEFAULT_TIMEOUT,
) -> Channel:
    """Open the other end of a channel; the binding stage may be started later. Parameters as for `bind`."""
    check_endpoint(_place(endpoint))
    return Channel(endpoint, bind=False, secret=secret, name=name, codec=codec, timeout=timeout)


def _place(endpoint: str) -> str:
    """Return an endpoint without the secret that may follow it."""
    return endpoint.partition("#")[0] if isinstance(endpoint, str) else endpoint
