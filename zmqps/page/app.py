"""What the page's server answers to which browser: the document and its policy, the view, metrics, and nothing else.

Access takes the page's token where it needs one, and no script of another site has it. Where it needs none, any program
of this host may look, and the browser of its user as well, on behalf of any site that is open there. A site cannot read
the answers, unless its name leads to this host (DNS rebinding); then the request says that name, and is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from zmqps.core.protocol.endpoints import host_named, is_loopback, is_of, join
from zmqps.errors import PSError
from zmqps.page.feed import SPANS, Ask, Feed
from zmqps.web.metrics import PATHS, Figures
from zmqps.web.server import WebServer, shows

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp
if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


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


MAX_TOKEN_CHARS = 4096

#: Of every answer. Only our own document runs scripts, and its policy says which.
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
OTHER_ORIGIN = "This page answers to no other site.\n"
WRONG_NAME = "This page answers to localhost, 127.0.0.1 and [::1] alone.\n"
NO_TOKEN = (
    "This page needs its token: open the address with ?token=... that `zmqps up` has printed, or see the file that the "
    "coordinator's log names.\n"
)


class Guard:
    """Lets requests through to an app, and adds `HEADERS` to what it answers.

    Parameters
    ----------
    app
        What answers.
    token
        What a browser has to show once, in the address, and has in a cookie from then on; a scraper sends it as
        ``Authorization: Bearer …``. Empty: nothing.
    cookie
        The cookie's name; browsers keep one jar for all ports of a host.
    """

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app = app
        self._token = token.encode()
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        from starlette.responses import PlainTextResponse, RedirectResponse

        assert scope["type"] == "http"
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        app: ASGIApp = self._app
        if len(hosts) != 1 or (not self._token and not is_loopback(host_named(hosts[0]))):
            app = PlainTextResponse(WRONG_NAME, 421)
        elif b"origin" in headers and not is_of(headers[b"origin"], hosts[0]):
            app = PlainTextResponse(OTHER_ORIGIN, 403)
        elif self._token and not (
            self._shown(self._from_cookie(headers.get(b"cookie", "")))
            or shows(headers.get(b"authorization", ""), self._token)
        ):
            said = parse_qs(scope["query_string"].decode("latin-1")[: 2 * MAX_TOKEN_CHARS])
            app = PlainTextResponse(NO_TOKEN, 403)
            if scope["path"] == "/" and self._shown(said.get("token", [""])[0]):
                response: Response = RedirectResponse("/", 303)  # the token does not stay in the address
                response.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="strict")
                app = response

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = {name for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in said]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await app(scope, receive, send_with_headers)

    def _shown(self, token: str) -> bool:
        return hmac.compare_digest(token[:MAX_TOKEN_CHARS].encode(), self._token)

    def _from_cookie(self, header: str) -> str:
        try:
            found = SimpleCookie(header[: 1 << 13]).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value
