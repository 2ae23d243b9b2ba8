"""Who may look at the page."""

from __future__ import annotations

from tests.page.asked import Asked, connected, get, live, served
from tests.tables import for_each
from zmqps.page.app import HEADERS

TOKEN = "5f" * 32


def test_without_a_token_only_names_of_this_host_are_answered() -> None:
    with served(Asked(live())) as (port, _):
        for good in (f"127.0.0.1:{port}", "localhost:9000", "[::1]:1", "LOCALHOST", "localhost.", "localhost.:80"):
            assert get(port, "/now.json", Host=good)[0] == 200
        for bad in (
            *("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil"),
            *("[::1].evil.com", "[::1].evil.com:80", "[::1]evil", "[::1%25evil]", "[::1%evil]", "[evil.com]", "[::1"),
            *(
                "localhost:80@evil.com",
                "me@localhost",
                "evil.com#localhost",
                "localhost:",
                "localhost:x",
                "",
                "..",
                "::1",
            ),
        ):
            status, _, body = get(port, "/now.json", Host=bad)
            assert status == 421
            assert b"localhost" in body


def test_a_request_from_a_page_of_another_origin_is_refused() -> None:
    with served(Asked(live())) as (port, _):
        host = f"localhost:{port}"
        assert get(port, "/now.json", Host=host, Origin=f"http://{host}")[0] == 200
        for bad in ("http://evil.example", f"http://{host}.evil.example", "null", "http://localhost:1", host):
            assert get(port, "/now.json", Host=host, Origin=bad)[0] == 403, bad


@for_each(
    "said",
    [
        b"GET /now.json HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /now.json HTTP/1.1\r\nHost: evil.example\r\nhost: localhost\r\n\r\n",
        b"GET http://localhost/now.json HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET http://evil.example/now.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /now.json HTTP/1.0\r\n\r\n",
        b"GET /now.json HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    ],
)
def test_a_request_that_names_two_hosts_another_one_or_none_sees_nothing(said: bytes) -> None:
    with served(Asked(live())) as (port, _), connected(port) as peer:
        peer.sendall(said)
        answer = peer.recv(1000)
    assert answer.startswith(b"HTTP/1.1 4")
    assert b'"live"' not in answer


def test_with_a_token_nobody_gets_anything_who_has_not_shown_it() -> None:
    with served(Asked(live()), TOKEN) as (port, url):
        cookie = f"zmqps-page-{port}"
        shown = [{}, {"Cookie": f"{cookie}=x"}, {"Cookie": f"other={TOKEN}"}, {"Cookie": f"{cookie}={TOKEN}0"}]
        for headers in [*shown, {"Cookie": f"{cookie}={'é' * 9}".encode().decode("latin-1")}]:
            for path in ("/", "/now.json", "/view.json", "/?token=", "/?token=5f", f"/now.json?token={TOKEN}"):
                status, _, body = get(port, path, **headers)
                assert status == 403
                assert b"zmqps up" in body
                assert TOKEN.encode() not in body
        assert url == f"http://127.0.0.1:{port}/?token={TOKEN}"


def test_the_token_opens_the_page_and_does_not_stay_in_the_address() -> None:
    with served(Asked(live()), TOKEN) as (port, _):
        status, headers, _ = get(port, f"/?token={TOKEN}", Host="any.name")
        assert (status, headers["location"]) == (303, "/")
        assert "httponly" in headers["set-cookie"].lower()
        assert "samesite=strict" in headers["set-cookie"].lower()
        cookie = headers["set-cookie"].partition(";")[0]
        assert get(port, "/", Cookie=cookie)[0] == 200
        assert get(port, "/now.json", Cookie=f"a=b; {cookie}; c=d")[0] == 200


def test_every_answer_says_what_a_browser_may_not_do_with_it() -> None:
    with served(Asked(live())) as (port, _):
        for path, host in (("/", "localhost"), ("/now.json", "localhost"), ("/none", "localhost"), ("/", "evil")):
            _, headers, _ = get(port, path, Host=host)
            assert headers.items() >= {n: v for n, v in HEADERS.items() if n != "content-security-policy"}.items()
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers
