"""The HTTP server that answers scrapes, which is imported only on demand: it takes 20 ms."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from zmqps.net.connections import hang_up

#: Takes a path and the values of each of `HEADERS`; returns status, content type and body.
Answer = Callable[[str, dict[str, list[str]]], tuple[HTTPStatus, str, bytes]]
HEADERS = ("Authorization", "Host", "Origin", "Accept")
#: Seconds that a client has for its whole request, and for taking the whole answer, however it spends them.
CLIENT_S = 5.0
#: Connections at a time, a thread each. For one more the oldest is closed, so a slow client keeps no other out.
MAX_CONNECTIONS = 64
#: Answers that are made at a time: for one Prometheus, its double, and a user with curl. Others wait for these.
MAX_AT_ONCE = 8
#: Seconds until one that is hung up on has left its thread, which takes microseconds.
LEAVE_S = 0.5


@dataclass(slots=True)
class Client:
    """A connection, and when its time is over; never, while its answer is being made."""

    host: str
    due: float


class Listener(ThreadingMixIn, HTTPServer):
    """Takes so many scrapes at a time, each on a thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, answer: Answer) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answer = answer
        self.clients: dict[socket.socket, Client] = {}  # the oldest first
        self.answered = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without resolving this host's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], int(self.server_address[1])  # type: ignore[assignment]

    def service_actions(self) -> None:
        """Hang up on clients whose time is over: a timeout of each `recv` would restart with each byte."""
        now = time.monotonic()
        for connection, client in list(self.clients.items()):
            if now >= client.due:
                hang_up(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a request to a thread, for which the oldest may have to leave."""
        if not self._places.acquire(blocking=False):
            self._hang_up_on_oldest()
            if not self._places.acquire(timeout=LEAVE_S):
                self.shutdown_request(request)
                return
        self.clients[request] = Client(client_address[0], time.monotonic() + CLIENT_S)
        super().process_request(request, client_address)

    def _hang_up_on_oldest(self) -> None:
        """Hang up on the oldest connection of the address with the most, but on none whose answer is being made."""
        found = [(connection, client) for connection, client in list(self.clients.items()) if client.due < math.inf]
        counts = Counter(client.host for _, client in found)
        if found:
            hang_up(max(found, key=lambda one: counts[one[1].host])[0])

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self.clients[request]
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone."""
        logging.getLogger("zmqps.metrics").debug("a scrape has failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Listener
    server_version, sys_version = "zmqps", ""

    def do_GET(self) -> None:
        """Answer a scrape."""
        told = {name: self.headers.get_all(name, []) for name in HEADERS}
        client = self.server.clients[self.connection]
        client.due = math.inf  # from here to the answer it takes as long as the node does
        try:
            with self.server.answered:
                status, content_type, body = self.server.answer(self.path, told)
        finally:
            client.due = time.monotonic() + CLIENT_S
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests: a scrape is no event."""
