"""The HTTP server that answers scrapes, which is imported only where somebody wants it: it takes 20 ms."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

#: Takes a path and headers; returns status, content type and body.
Answer = Callable[[str, dict[str, str]], tuple[HTTPStatus, str, bytes]]
#: Seconds that a client may take to ask, and to take the answer.
CLIENT_S = 5.0
#: Scrapes at a time: one Prometheus, its double, and somebody with curl. Others are hung up on.
MAX_AT_ONCE = 8


class Listener(ThreadingMixIn, HTTPServer):
    """Takes so many scrapes at a time, each on a thread."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, answer: Answer) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answer = answer
        self._places = threading.BoundedSemaphore(MAX_AT_ONCE)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, and ask nobody for this host's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], int(self.server_address[1])  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a request to a thread, if there is one left."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone."""
        logging.getLogger("zmqps.metrics").debug("a scrape has failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Listener
    server_version, sys_version = "zmqps", ""
    timeout = CLIENT_S

    def do_GET(self) -> None:
        """Answer a scrape."""
        told = {name: self.headers.get(name) or "" for name in ("Authorization", "Host", "Accept")}
        status, content_type, body = self.server.answer(self.path, told)
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
