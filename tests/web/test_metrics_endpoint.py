"""Scrapes are answered to those who may ask, as many at a time as there are places, and until the node ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pace import allow
from tests.web.samples import small

pytest.importorskip("prometheus_client")

from tests.tables import for_each
from zmqps.core.node.measured import Measurements
from zmqps.errors import AddressInUseError, ConfigurationError, DeadlineError
from zmqps.web import metrics
from zmqps.web.metrics import Source, answering
from zmqps.web.server import MAX_CONNECTIONS, WebPlace

LOG = logging.getLogger("zmqps.tests")
Serve = Callable[..., str]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def enter(ask: Callable[[], Measurements] = small, role: str = "coordinator", **place: object) -> str:
            options = {"address": "127.0.0.1:0", **place}
            return stack.enter_context(answering(WebPlace(**options), ask, role, LOG)).removesuffix("/metrics")

        yield enter


def get(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=allow(10)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_coordinator_tells_of_all_nodes_or_of_itself(serve: Serve) -> None:
    url = serve()
    status, everybody = get(f"{url}/metrics")
    assert status == 200
    assert 'zmqps_pushes_total{job="a",rank="0",role="worker"} 3.0' in everybody
    status, own = get(f"{url}/metrics/own")
    assert status == 200
    assert "zmqps_pushes_total{" not in own
    assert 'zmqps_cpu_seconds_total{job="",role="coordinator"} 0.5' in own
    assert 'zmqps_steps{job="a"} 7.0' in own


def test_other_paths_say_where_metrics_are(serve: Serve) -> None:
    url = serve()
    assert get(f"{url}/")[0] == 200
    assert get(f"{url}/other") == (404, metrics.INDEX)


def test_with_a_token_nobody_else_is_answered(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    url = serve(token=tmp_path / "token")
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic 0123456789abcdef"}):
        status, body = get(f"{url}/metrics", **wrong)
        assert status == 401
        assert "zmqps_pushes" not in body
    assert get(f"{url}/metrics", Authorization="Bearer 0123456789abcdef")[0] == 200


def test_a_page_that_calls_this_host_by_another_name_reads_nothing(serve: Serve) -> None:
    url = serve()
    for other in (
        "attacker.example:9570",
        "[::1].evil.com",
        "localhost.evil.com",
        "me@localhost",
        "localhost:x",
        "a b",
    ):
        assert get(f"{url}/metrics", Host=other)[0] == 403, other
    for own in ("localhost:9570", "LOCALHOST", "localhost.", "[::1]:9570", "127.0.0.1"):
        assert get(f"{url}/metrics", Host=own)[0] == 200, own
    assert get(f"{url}/metrics", Host="localhost:9570", Origin="http://localhost:9570")[0] == 200
    for origin in ("http://localhost:9571", "http://evil.example", "null"):
        assert get(f"{url}/metrics", Host="localhost:9570", Origin=origin)[0] == 403, origin


def test_a_node_that_does_not_answer_in_time_fails_the_scrape_and_no_more(serve: Serve) -> None:
    def busy() -> Measurements:
        raise DeadlineError(operation="a scrape", seconds=5.0, waiting_for="the node's loop")

    url = serve(busy)
    assert get(f"{url}/metrics") == (503, "a scrape timed out after 5.0 s, waiting for the node's loop\n")


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=allow(10))


def is_shut(peer: socket.socket) -> bool:
    """Wait until the other end has shut a connection, or has said something."""
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True


def test_strangers_that_ask_slowly_shut_no_scraper_out_and_the_oldest_is_hung_up_on(serve: Serve) -> None:
    url = serve()
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(MAX_CONNECTIONS)]
        for peer in slow:
            peer.sendall(b"GET /met")
        for _ in range(3):
            assert get(f"{url}/metrics")[0] == 200
        assert is_shut(slow[0])
        slow[-1].sendall(b"rics HTTP/1.0\r\n\r\n")
        assert slow[-1].recv(15).startswith(b"HTTP/1.1 403"), "it did not say whom it means"


@for_each(
    "said",
    [
        b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nhost: evil.example\r\n\r\n",
        b"GET http://localhost/metrics HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\nHost: [::1].evil.com\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\n\r\n",
    ],
)
def test_a_request_that_names_two_hosts_another_one_or_none_reads_nothing(serve: Serve, said: bytes) -> None:
    with connected(serve()) as peer:
        peer.sendall(said)
        answer = peer.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"zmqps_" not in answer


def test_a_port_that_somebody_has_is_refused_by_its_owner(serve: Serve) -> None:
    taken = serve().removeprefix("http://")
    with pytest.raises(AddressInUseError, match="is in use by"), answering(WebPlace(taken), small, "server", LOG):
        raise AssertionError
    assert get(f"http://{taken}/metrics")[0] == 200


def test_an_address_of_another_host_is_refused() -> None:
    place = WebPlace("192.0.2.1:0", insecure=True)
    with pytest.raises(ConfigurationError, match="metrics cannot listen at"), answering(place, small, "server", LOG):
        raise AssertionError


def test_without_an_address_nothing_listens_and_no_library_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "check_installed", lambda: pytest.fail("asked for"))
    before = threading.active_count()
    with answering(WebPlace(), small, "server", LOG) as url:
        assert url == ""
        assert threading.active_count() == before


def test_without_the_library_the_command_is_told_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[watch\]'"):
        metrics.check_installed()


def test_after_the_end_nobody_listens(serve: Serve) -> None:
    with answering(WebPlace("127.0.0.1:0"), small, "server", LOG) as url:
        assert get(url)[0] == 200
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_a_source_asks_in_the_loop_and_gives_up_on_one_that_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, held = small(), threading.Event()

    def ask(source: Source) -> None:
        with pytest.raises(DeadlineError):
            source()
        held.set()

    async def node() -> Measurements:
        source = Source(asyncio.get_running_loop())
        assert (await asyncio.to_thread(source)).counted == [], "before there is a node"
        threads = []
        source.measure = lambda: threads.append(threading.current_thread()) or measured
        assert await asyncio.to_thread(source) is measured
        assert threads == [threading.current_thread()]
        monkeypatch.setattr(metrics, "ASK_S", 0.05)
        asked = asyncio.get_running_loop().run_in_executor(None, ask, source)
        held.wait(allow(10))  # the loop does nothing else meanwhile
        await asked
        assert len(threads) == 1, "what nobody waits for any more is not measured"
        return source

    source = asyncio.run(node())
    with pytest.raises(DeadlineError):
        source()


def test_nodes_that_answer_no_scrapes_load_no_http_server() -> None:
    program = "import sys, zmqps.worker, zmqps.nodes.server, zmqps.nodes.coordinator; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted_by_few = {"prometheus_client", "starlette", "uvicorn"}
    assert wanted_by_few.isdisjoint(loaded.stdout.splitlines()[-1].split())
