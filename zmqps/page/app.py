"""What the page's server answers: the document, the view, metrics, and nothing else."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote

from zmqps.core.protocol.endpoints import join
from zmqps.errors import PSError
from zmqps.metrics.endpoint import PATHS, Figures
from zmqps.page.document import Document, read_document
from zmqps.page.feed import Ask, Feed
from zmqps.page.guard import Guard
from zmqps.page.kept import SPANS
from zmqps.web.server import WebServer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp


def make_app(feed: Feed, document: Document, figures: Figures, *, token: str, cookie: str) -> ASGIApp:
    """Return the ASGI application; `Guard` says what ``token`` and ``cookie`` are."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    def page(request: Request) -> Response:
        return Response(document.body, media_type="text/html", headers={"content-security-policy": document.policy})

    async def now(request: Request) -> Response:
        return await answer(request, 0)

    async def view(request: Request) -> Response:
        said = request.query_params.get("span", "300")
        span = int(said) if said.isascii() and said.isdecimal() and len(said) < 9 else -1
        if span not in SPANS:
            return PlainTextResponse(f"span is one of {', '.join(map(str, SPANS))}, in seconds\n", 400)
        return await answer(request, span)

    async def answer(request: Request, span: int) -> Response:
        try:
            told = await feed.get(span)
        except PSError as error:
            return Response(json.dumps({"error": str(error)}), 503, media_type="application/json")
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(told.packed, media_type="application/json", headers={"content-encoding": "gzip"})
        return Response(told.plain, media_type="application/json")

    async def metrics(request: Request) -> Response:
        return await figures.response(request.url.path, ", ".join(request.headers.getlist("accept")))

    routes = [Route("/", page), Route("/now.json", now), Route("/view.json", view)]
    return Guard(Starlette(routes=[*routes, *(Route(path, metrics) for path in PATHS)]), token, cookie)


def serving(listener: socket.socket, ask: Ask, figures: Figures, token: str) -> WebServer:
    """Return what serves the page at a listener while it is open.

    Parameters
    ----------
    listener
        Closed at the end.
    ask
        Asks the coordinator.
    figures
        What scrapers get.
    token
        What has to be shown; empty: nothing.
    """
    cookie = f"zmqps-page-{listener.getsockname()[1]}"
    return WebServer(listener, make_app(Feed(ask), read_document(), figures, token=token, cookie=cookie))


def url_of(host: str, port: int, token: str) -> str:
    """Return the address to open in a browser."""
    where = join(host, port).removeprefix("tcp://")
    query = f"?token={quote(token, safe='')}" if token else ""
    return f"http://{where}/{query}"
