"""Answers scrapes over HTTP, on threads of its own; the node's loop is only asked for its numbers."""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from errno import EADDRINUSE
from http import HTTPStatus

from zmqps.core.node.measured import Measurements
from zmqps.core.protocol.endpoints import host_named, ip_of, is_loopback, is_of, join
from zmqps.errors import AddressInUseError, ConfigurationError, DeadlineError, PSError
from zmqps.metrics.place import MetricsPlace, url
from zmqps.metrics.text import check_installed, exposed
from zmqps.net.loops import ask_loop
from zmqps.net.system.ports import owner_of

#: Seconds that a scrape waits for the node's loop; Prometheus waits 10.
ASK_S = 5.0
#: Seconds until the thread that accepts notices the end.
POLL_S = 0.1
INDEX = "zmqps\n/metrics       all figures; a coordinator has those of all nodes\n/metrics/own   this node's alone\n"


class Answers:
    """The answers, by request.

    Parameters
    ----------
    ask
        Returns what the node has measured; it may raise `PSError`.
    role
        The node's.
    place
        Where it listens.
    """

    def __init__(self, ask: Callable[[], Measurements], role: str, place: MetricsPlace) -> None:
        self._ask, self._role = ask, role
        self._secret, self._is_open = place.secret, place.is_open

    def answer(self, path: str, told: dict[str, list[str]]) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and body; ``told`` are the values of each header."""
        if len(told["Host"]) > 1:
            return _text(HTTPStatus.BAD_REQUEST, "name one host\n")
        host = "".join(told["Host"])
        if any(not is_of(origin, host) for origin in told["Origin"]):
            return _text(HTTPStatus.FORBIDDEN, "no other site's pages are answered\n")
        if self._secret:
            shown = "".join(told["Authorization"]).removeprefix("Bearer ").strip().encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(shown, self._secret):
                return _text(HTTPStatus.UNAUTHORIZED, "show the token of --metrics-token: Authorization: Bearer …\n")
        elif self._is_open and not _is_here(host_named(host)):  # a page in a browser here that has another name for us
            return _text(HTTPStatus.FORBIDDEN, "ask for an address or for localhost\n")
        path = path.partition("?")[0]
        if path == "/":
            return _text(HTTPStatus.OK, INDEX)
        if path not in ("/metrics", "/metrics/own"):
            return _text(HTTPStatus.NOT_FOUND, INDEX)
        try:
            body, content_type = exposed(self._ask if path == "/metrics" else self._own, ", ".join(told["Accept"]))
        except PSError as error:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
        return HTTPStatus.OK, content_type, body

    def _own(self) -> Measurements:
        """Return it without what the coordinator has from others."""
        measured = self._ask()
        if self._role != "coordinator":
            return measured
        return replace(measured, counted=[node for node in measured.counted if node.role == "coordinator"])


@contextmanager
def answering(place: MetricsPlace, ask: Callable[[], Measurements], role: str, log: logging.Logger) -> Iterator[str]:
    """Answer scrapes until the end of the block; yield the address, or nothing if scrapes are off.

    Raises
    ------
    ConfigurationError
        The address is none, or cannot be had, or prometheus-client is not installed.
    AddressInUseError
        The port is in use.
    """
    place.check()
    if not place.address:
        yield ""
        return
    check_installed()
    from zmqps.metrics.listener import Listener

    host, port = place.host_and_port
    try:
        server = Listener(host, port, Answers(ask, role, place).answer)
    except OSError as error:
        if error.errno == EADDRINUSE and port:
            raise AddressInUseError(endpoint=join(host, port), port=port, owner=owner_of(port)) from None
        raise ConfigurationError(f"cannot answer scrapes at {place.address}: {error}") from None
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="zmqps-metrics", daemon=True)
    thread.start()
    where = url(host, server.server_port)
    log.info("metrics at %s", where)
    try:
        yield where
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Source:
    """Asks a node for its figures from any other thread; all that its loop does for it is to run `measure`.

    Parameters
    ----------
    loop
        The node's.

    Attributes
    ----------
    measure
        Returns the figures; until there is a node, none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.measure: Callable[[], Measurements] = lambda: Measurements([])
        self._loop = loop

    def __call__(self) -> Measurements:
        """Return the figures.

        Raises
        ------
        DeadlineError
            The loop is busy, or has ended.
        """
        answer: Future[Measurements] | None = None
        try:
            answer = ask_loop(self._loop, lambda: self.measure())
            return answer.result(ASK_S)
        except (TimeoutError, RuntimeError):  # the loop is busy, or closed
            if answer is not None:
                answer.cancel()
            raise DeadlineError(operation="a scrape", seconds=ASK_S, waiting_for="the node's loop") from None


def _is_here(host: str) -> bool:
    """Whether this is an address, or this host's name: the owner of another name could point it here."""
    return is_loopback(host) or ip_of(host) is not None


def _text(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain; charset=utf-8", text.encode()
