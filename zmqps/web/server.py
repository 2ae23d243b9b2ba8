"""The HTTP server on a separate thread and loop, so that no client holds up the node; and where it answers."""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import os
import re
import socket
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zmqps import checks
from zmqps.core.protocol.endpoints import STAR, is_loopback, join, split
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.extras import advice
from zmqps.net import loops
from zmqps.net.connections import hang_up
from zmqps.net.identity import read_secret
from zmqps.net.system.addresses import family_of, ipv4_first, owner_of, resolve

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WebPlace:
    """What the user has said of it.

    Parameters
    ----------
    address
        ``HOST:PORT``, or a port of loopback; 0 takes a free one. Empty: nothing is answered.
    token
        The file with what clients have to show; None: nothing is given.
    insecure
        Answer beyond this host without such a file.
    option
        The option that says the address: ``metrics`` or ``page``.
    """

    address: str = ""
    token: str | os.PathLike[str] | None = None
    insecure: bool = False
    option: str = "metrics"

    def check(self) -> None:
        """Raise `ConfigurationError` for an invalid address, or one beyond this host without a token."""
        if not isinstance(self.address, str):
            checks.refuse(self.option, "an address, HOST:PORT", self.address)
        secret = self.secret
        if not self.address:
            return
        host, _ = self.host_and_port
        if not (is_loopback(host) or secret or self.insecure):
            raise ConfigurationError(
                f"--{self.option} {self.address} can be reached from other hosts and is not encrypted: pass "
                f"--{self.option}-token FILE, keep it at 127.0.0.1 and use `ssh -L`, or pass --insecure on a "
                "network that you trust"
            )

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where to listen."""
        address = self.address
        if address.isascii() and address.isdecimal():
            address = f"{LOOPBACK}:{address}"
        try:
            host, port = split(f"tcp://{address}")
        except ConfigurationError:
            raise ConfigurationError(
                f"{self.address!r:.200} is not an address for --{self.option}; give HOST:PORT, such as 127.0.0.1:9570, "
                "or a port of this host alone"
            ) from None
        return ("0.0.0.0" if host == "*" else host), port

    @property
    def secret(self) -> bytes:
        """What clients have to show."""
        secret = read_secret(self.token, f"{self.option}_token", f"the token of --{self.option}-token")
        if not re.fullmatch(rb"[!-~]*", secret):
            raise ConfigurationError(f"the token of --{self.option}-token has characters other than visible ASCII")
        return secret

    @property
    def is_open(self) -> bool:
        """Whether only this host reaches it, and no token is required."""
        return is_loopback(self.host_and_port[0]) and not self.secret


def url(host: str, port: int) -> str:
    """Return where metrics are found."""
    return f"{join(host, port).replace('tcp://', 'http://')}/metrics"


#: Connections at a time. A browser has up to six; each may hold one answer that it does not read, of 1 MB. For one more
#: that is shut which has asked nothing for longest: a slow client keeps no browser out.
MAX_CONNECTIONS = 64
#: A client that has not sent a whole request for this long, or has read nothing of an answer, is shut, …
SILENT_S = 15.0
#: … and one that has not read the whole answer.
ANSWER_S = 60.0
#: Between two checks for silent clients; browsers that ask every second never count as silent.
LOOK_S = 5.0
#: A request without a body; browsers send some hundred bytes, and a cookie for each port of this host.
MAX_REQUEST_NBYTES = 16 << 10
STOP_S = 3.0

log = logging.getLogger("zmqps.web")


def listen(host: str, port: int, what: str) -> socket.socket:
    """Return a socket that listens at a host and port; 0 takes a free one. ``what`` is served, for errors.

    Raises
    ------
    AddressInUseError
        It is in use.
    ConfigurationError
        It is not an address of this host, or what is needed for a server is not installed.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            f"{what} cannot be served without starlette and uvicorn, which are not installed: {advice('watch')}"
        ) from None
    address = "0.0.0.0" if host == STAR else ipv4_first(resolve(host))[0]
    listener = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(endpoint=f"{what} {host}:{port}", port=port, owner=owner_of(port)) from None
        raise ConfigurationError(f"{what} cannot listen at {host}:{port}: {error.strerror or error}") from None
    except BaseException:
        listener.close()
        raise
    return listener


class WebServer:
    """Serves an application while it is open; a context manager.

    Parameters
    ----------
    listener
        Where, see `listen`; closed at the end.
    app
        What answers.
    """

    def __init__(self, listener: socket.socket, app: ASGIApp) -> None:
        self._listener = listener
        self._app = app
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run, name="zmqps-web", daemon=True)

    def __enter__(self) -> WebServer:
        import uvicorn

        config = uvicorn.Config(
            self._app, http=_protocol(), loop="asyncio", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_keep_alive=int(SILENT_S),
            timeout_graceful_shutdown=1, h11_max_incomplete_event_size=MAX_REQUEST_NBYTES,
        )  # fmt: skip
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # strangers would fill the log with its warnings
        self._server = uvicorn.Server(config)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        if threading.current_thread() is not self._thread:  # the garbage collector runs in any
            self._thread.join(STOP_S)
        self._listener.close()

    def _run(self) -> None:
        assert self._server is not None
        try:
            loops.run(self._server.serve(sockets=[self._listener]))
        except BaseException:  # a page that is not there is no reason for a cluster to end
            log.exception("HTTP is no longer served")


def shows(authorization: str, secret: bytes) -> bool:
    """Whether a request's header ``Authorization`` is ``Bearer`` and the secret."""
    return hmac.compare_digest(authorization.removeprefix("Bearer ").strip().encode(), secret)


def _protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with bounds: of how many connections there are, and how long one may be silent."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    def make_room(newest: Bounded) -> None:
        """Shut one for another: of the address with the most, which has asked nothing for longest."""
        others = [one for one in newest.connections if isinstance(one, Bounded) and one is not newest]
        counts = Counter(one.host for one in others)
        min(others, key=lambda one: (not one.is_idle, -counts[one.host], one.asked_at)).shut()

    class Bounded(H11Protocol):
        _watch: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peer = transport.get_extra_info("peername")
            self.host = peer[0] if peer else ""
            self.asked_at = self._read_at = self.loop.time()
            self._unread = 0
            if len(self.connections) > MAX_CONNECTIONS:
                make_room(self)
            self._watch = self.loop.call_later(LOOK_S, self._look)

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before:  # a request is whole
                self.asked_at = self._read_at = self.loop.time()

        def _look(self) -> None:
            unread, now = self.transport.get_write_buffer_size(), self.loop.time()
            if unread and unread < self._unread:
                self._read_at = now
            self._unread = unread
            silent = now - self._read_at > SILENT_S and (unread or self.is_idle)
            if silent or (unread and now - self.asked_at > ANSWER_S):
                self.shut()
                return
            self._watch = self.loop.call_later(LOOK_S, self._look)

        @property
        def is_idle(self) -> bool:
            """Whether no answer is being made for it."""
            return self.cycle is None or self.cycle.response_complete

        def shut(self) -> None:
            """End it at once; it is not a connection any more when this returns."""
            hang_up(self.transport.get_extra_info("socket"))
            self.transport.abort()
            self.connections.discard(self)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._watch is not None:
                self._watch.cancel()
            super().connection_lost(exc)

    return Bounded
