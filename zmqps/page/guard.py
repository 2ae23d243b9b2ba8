"""Access to the page: with its token, where it needs one; and never from a script of another site.

Where it needs none, any program of this host may look, and the browser of its user as well, on behalf of any site that
is open there. A site cannot read the answers, unless its name leads to this host (DNS rebinding); then the request
says that name, and is refused.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from zmqps.core.protocol.endpoints import host_named, is_loopback, is_of
from zmqps.web.server import shows

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

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
