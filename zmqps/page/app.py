"""What the page's server answers: the document and its policy, the view, metrics, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import quote

from zmqps.core.protocol.endpoints import join
from zmqps.errors import PSError
from zmqps.metrics.endpoint import PATHS, Figures
from zmqps.page.feed import SPANS, Ask, Feed
from zmqps.page.guard import Guard
from zmqps.web.server import WebServer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp


#: In this order.
SCRIPTS = ("uplot/uPlot.iife.min.js", "words.js", "plots.js", "panels.js", "page.js")
STYLES = ("uplot/uPlot.min.css", "page.css")


@dataclass(frozen=True, slots=True)
class Document:
    """A document and its policy."""

    body: bytes
    policy: str


def read_document() -> Document:
    """Return the files of ``static/`` in one, with the policy that lets exactly these scripts and styles run."""
    styles, scripts = [_read(name) for name in STYLES], [_read(name) for name in SCRIPTS]
    text = _read("page.html")
    text = text.replace("<!-- styles -->", "\n".join(f"<style>{style}</style>" for style in styles))
    text = text.replace("<!-- scripts -->", "\n".join(f"<script>{script}</script>" for script in scripts))
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Document(text.encode(), policy)


def _read(name: str) -> str:
    return files("zmqps.page").joinpath("static", *name.split("/")).read_text("utf-8")


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


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
