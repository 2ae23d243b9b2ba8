"""What the page's server answers."""

from __future__ import annotations

import gzip
import json

from tests.page.asked import Asked, get, live, say, series, served
from tests.tables import for_each
from zmqps.errors import DeadlineError


def test_it_serves_the_document_and_what_there_is_to_see() -> None:
    asked = Asked(live(), [series("loss")])
    with served(asked) as (port, _):
        status, headers, body = get(port, "/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert body.startswith(b"<!doctype html>")
        status, headers, body = get(port, "/view.json?span=3600", Accept_Encoding="gzip, br")
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert json.loads(gzip.decompress(body))["series"][0]["name"] == "loss"
        assert json.loads(get(port, "/now.json")[2])["live"]["host"] == "here"
    assert [question.span for question in asked.questions[:2]] == [604800.0, 3600.0]


@for_each("span", ["", "0", "301", "-300", "1e9", "٣٠٠", "9" * 4000, "300;"])
def test_other_spans_are_refused_and_nobody_is_asked(span: str) -> None:
    from urllib.parse import quote

    asked = Asked(live())
    with served(asked) as (port, _):
        status, _, body = get(port, f"/view.json?span={quote(span)}")
    assert (status, asked.questions) == (400, [])
    assert b"604800" in body


@for_each("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    with served(Asked(live())) as (port, _):
        for path in ("/", "/now.json", "/view.json"):
            assert say(port, method, path)[0] == 405
        assert get(port, "/../../etc/passwd")[0] == 404
        assert get(port, "/static/page.js")[0] == 404


def test_it_says_when_the_coordinator_does_not_answer() -> None:
    asked = Asked(live())
    asked.error = DeadlineError(operation="the page", seconds=5.0, waiting_for="the coordinator")
    with served(asked) as (port, _):
        status, _, body = get(port, "/now.json")
        assert status == 503
        assert "waiting for the coordinator" in json.loads(body)["error"]
        asked.error = None
        assert get(port, "/now.json")[0] == 200
