"""A page without a cluster: what a test says is what the coordinator answers."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from tests.pace import allow
from zmqps.core.node.measured import Measurements
from zmqps.core.protocol.figures import BOUNDS
from zmqps.core.protocol.messages import Watch
from zmqps.page.app import serving, url_of
from zmqps.web.metrics import Figures
from zmqps.web.server import listen

PATIENCE = allow(20.0)


class Asked:
    """Answers for the coordinator, and remembers what it was asked."""

    def __init__(self, live: Mapping[str, Any], series: Sequence[Mapping[str, Any]] = ()) -> None:
        self.live, self.series, self.began = live, series, 0
        self.questions: list[Watch] = []
        self.error: Exception | None = None

    def __call__(self, asked: Watch) -> Future[dict[str, Any]]:
        self.questions.append(asked)
        future: Future[dict[str, Any]] = Future()
        if self.error is not None:
            future.set_exception(self.error)
        else:
            told = [] if asked.node else self.series
            future.set_result({"live": self.live, "began": self.began, "series": told})
        return future


def live(**more: Any) -> dict[str, Any]:
    """Return what is to be seen of a cluster with nobody in it, and what a test adds."""
    return {
        "now": 1000.0, "state": "ready", "endpoint": "tcp://127.0.0.1:5570", "host": "here", "uptime_s": 7.0,
        "waiting": [], "left_out": [], "jobs": {}, "ended": [], "members": [], "gone": [], "waits": [], "awaited_s": {},
        "slowest": {},
        "events": [], "bounds": {name: list(bounds) for name, bounds in BOUNDS.items()}, **more,
    }  # fmt: skip


def series(name: str, *points: Sequence[float | None], node: str = "", every: float = 1.0) -> dict[str, Any]:
    """Return a series, its points as the coordinator tells them."""
    return {"job": "a", "node": node, "name": name, "kind": "value", "every": every, "points": points}


@contextmanager
def served(asked: Asked, token: str = "") -> Iterator[tuple[int, str]]:
    """Serve a page on loopback; yield its port, and its address."""
    listener = listen("127.0.0.1", 0, "the page")
    port = listener.getsockname()[1]
    with serving(listener, asked, Figures(lambda: Measurements([]), "coordinator"), token):
        yield port, url_of("127.0.0.1", port, token)


def get(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    return say(port, "GET", path, **headers)


def say(port: int, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The same of any method."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def connected(port: int, receive_nbytes: int = 0) -> socket.socket:
    """Return a connection that says nothing yet; it buffers little of what it gets, if that is said."""
    peer = socket.socket()
    peer.settimeout(PATIENCE)
    if receive_nbytes:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_nbytes)
    peer.connect(("127.0.0.1", port))
    return peer
