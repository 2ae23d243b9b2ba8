"""What a node has counted as families of metrics, as Prometheus reads them by its library, and answers to scrapes.

The node's loop is only asked for its numbers.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from zmqps.core.node.measured import Counted, Measurements
from zmqps.core.protocol.endpoints import host_named, ip_of, is_loopback, is_of
from zmqps.core.protocol.figures import BOUNDS, OF_COORDINATOR, OF_NODES, TABLE, Figure, is_histogram
from zmqps.errors import ConfigurationError, DeadlineError, PSError
from zmqps.extras import advice
from zmqps.net.loops import ask_loop
from zmqps.web.server import WebPlace, WebServer, listen, shows, url

if TYPE_CHECKING:
    from prometheus_client.core import Metric
if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send


Labels = tuple[tuple[str, str], ...]
#: Prometheus has a label of this name, too: a series without one would get its.
JOB = "job"
#: The families, by metric; one may hold what nodes count as well as what the coordinator knows.
FIGURES = {figure.metric: figure for figure in (*OF_NODES, *OF_COORDINATOR)}


@dataclass(slots=True)
class Family:
    """A metric with its series: the value of each or, of a histogram, its sum and counts."""

    figure: Figure
    series: dict[Labels, Any] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of all labels that a series of it has, and always `JOB`."""
        return tuple(sorted({JOB, *(name for labels in self.series for name, _ in labels)}))


def families(measured: Measurements) -> list[Family]:
    """Return the families that have any series, in the order of the catalogue.

    A node that has said nothing yet has no series; one that has counts 0 of what it never met.
    """
    found = {metric: Family(figure) for metric, figure in FIGURES.items()}
    for node in measured.counted:
        counters = json.loads(node.counters) if isinstance(node.counters, str) else node.counters
        for figure, labels, value in _of_node(node, counters):
            found[figure.metric].series.setdefault(_key({**node.labels, **labels}), value)
    by_name = {figure.name: figure for figure in OF_COORDINATOR}
    for known in measured.known:
        found[by_name[known.name].metric].series.setdefault(_key(known.labels), known.value)
    return [family for family in found.values() if family.series]


def _of_node(node: Counted, counters: Mapping[str, Any]) -> Iterator[tuple[Figure, Mapping[str, str], Any]]:
    if not counters:
        return
    for figure in OF_NODES:
        if node.scope not in figure.of:
            continue
        value = counters.get(figure.name)
        if TABLE in figure.labels:
            yield from ((figure, labels, number) for labels, number in _of_tables(figure.name, counters))
        elif figure.kind == "histogram":
            if is_histogram(figure.name, value):
                yield figure, {}, value
        elif _is_number(value):
            yield figure, {}, value
        elif figure.kind == "counter":
            yield figure, {}, 0


def _of_tables(name: str, counters: Mapping[str, Any]) -> Iterable[tuple[Mapping[str, str], Any]]:
    """Yield the figure of each table with its own label; without a label, the sum of all others."""
    if not _is_number(counters.get(name)):
        return
    rest = counters[name]
    for key, value in counters.items():
        of, _, table = key.partition(".")
        if of == name and table and _is_number(value):
            yield {TABLE: table}, value
            rest -= value
    if rest > 0:
        yield {}, rest


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def check_installed() -> None:
    """Raise `ConfigurationError` unless the library is there."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigurationError(f"metrics need prometheus-client, which is not installed: {advice('watch')}") from None


class Collector:
    """Asks a node for its figures at each scrape (a custom collector of `prometheus_client`)."""

    def __init__(self, ask: Callable[[], Measurements]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for family in families(self._ask()):
            yield to_metric(family)


def to_metric(family: Family) -> Metric:
    """Return a family as the library has it."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    figure, names = family.figure, family.labels
    if figure.kind == "histogram":
        histogram = HistogramMetricFamily(figure.metric, figure.help, labels=names)
        bounds = [*(f"{bound:g}" for bound in BOUNDS[figure.name]), "+Inf"]
        for labels, (total, *counts) in family.series.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            histogram.add_metric(_values(names, labels), buckets, sum_value=total)
        return histogram
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    metric = kind(figure.metric, figure.help, labels=names)
    for labels, value in family.series.items():
        metric.add_metric(_values(names, labels), value)
    return metric


def exposed(ask: Callable[[], Measurements], accept: str = "") -> tuple[bytes, str]:
    """Return what a scrape is answered with, and its content type, in the format that is asked for."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(ask))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _values(names: tuple[str, ...], labels: tuple[tuple[str, str], ...]) -> list[str]:
    told = dict(labels)
    return [told.get(name, "") for name in names]


# --- scrapes over HTTP --------------------------------------------------------------------------

#: Seconds that a scrape waits for the node's loop; Prometheus waits 10.
ASK_S = 5.0
#: Answers that are made at a time: for one Prometheus, its double, and a user with curl. Others wait for these.
MAX_AT_ONCE = 8
HEADERS = (b"authorization", b"host", b"origin", b"accept")
#: All figures, and those of this node alone.
PATHS = ("/metrics", "/metrics/own")
INDEX = "zmqps\n/metrics       all figures; a coordinator has those of all nodes\n/metrics/own   this node's alone\n"


class Figures:
    """The figures of a node, in the format that a scraper asks for; `MAX_AT_ONCE` at a time.

    Parameters
    ----------
    ask
        Returns what the node has measured; it may raise `PSError`.
    role
        The node's.
    """

    def __init__(self, ask: Callable[[], Measurements], role: str) -> None:
        self._ask, self._role = ask, role
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def response(self, path: str, accept: str) -> Response:
        """Return those of one of `PATHS`; the node is asked on another thread."""
        from starlette.responses import PlainTextResponse, Response

        async with self._turns:
            try:
                ask = self._ask if path == PATHS[0] else self._own
                body, content_type = await asyncio.to_thread(exposed, ask, accept)
            except PSError as error:
                return PlainTextResponse(f"{error}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(body, headers={"content-type": content_type})

    def _own(self) -> Measurements:
        """Return it without what the coordinator has from others."""
        measured = self._ask()
        if self._role != "coordinator":
            return measured
        return replace(measured, counted=[node for node in measured.counted if node.role == "coordinator"])


class Answers:
    """Answers scrapes at a separate address; an ASGI application.

    Parameters
    ----------
    figures
        What is scraped.
    place
        Where it listens.
    """

    def __init__(self, figures: Figures, place: WebPlace) -> None:
        self._figures = figures
        self._secret, self._is_open = place.secret, place.is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        assert scope["type"] == "http"
        told: dict[bytes, list[str]] = {
            name: [value.decode("latin-1") for key, value in scope["headers"] if key == name] for name in HEADERS
        }
        response = self._refused(told)
        if response is None and scope["path"] in PATHS:
            response = await self._figures.response(scope["path"], ", ".join(told[b"accept"]))
        elif response is None:
            response = _text(HTTPStatus.OK if scope["path"] == "/" else HTTPStatus.NOT_FOUND, INDEX)
        response.headers["x-content-type-options"] = "nosniff"
        await response(scope, receive, send)

    def _refused(self, told: dict[bytes, list[str]]) -> Response | None:
        """Return what a request is answered with that may not be; ``told`` are the values of each header."""
        if len(told[b"host"]) > 1:
            return _text(HTTPStatus.BAD_REQUEST, "name one host\n")
        host = "".join(told[b"host"])
        if any(not is_of(origin, host) for origin in told[b"origin"]):
            return _text(HTTPStatus.FORBIDDEN, "no other site's pages are answered\n")
        if self._secret:
            if not shows("".join(told[b"authorization"]), self._secret):
                text = "show the token of --metrics-token: Authorization: Bearer …\n"
                return _text(HTTPStatus.UNAUTHORIZED, text, {"www-authenticate": "Bearer"})
        elif self._is_open and not _is_here(host_named(host)):  # a page in a browser here that has another name for us
            return _text(HTTPStatus.FORBIDDEN, "ask for an address or for localhost\n")
        return None


@contextmanager
def answering(place: WebPlace, ask: Callable[[], Measurements], role: str, log: logging.Logger) -> Iterator[str]:
    """Answer scrapes until the end of the block; yield the address, or nothing if scrapes are off.

    Raises
    ------
    ConfigurationError
        The address is invalid, or cannot be used, or prometheus-client is not installed.
    AddressInUseError
        The port is in use.
    """
    place.check()
    if not place.address:
        yield ""
        return
    check_installed()
    host, port = place.host_and_port
    answers = Answers(Figures(ask, role), place)
    listener = listen(host, port, "metrics")
    where = url(host, listener.getsockname()[1])
    log.info("metrics at %s", where)
    with WebServer(listener, answers):
        yield where


class Source:
    """Asks a node for its figures from any other thread; its loop only runs `measure` for it.

    Parameters
    ----------
    loop
        The node's.

    Attributes
    ----------
    measure
        Returns the figures; until there is a node, none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.measure: Callable[[], Measurements] = lambda: Measurements([])
        self._loop = loop

    def __call__(self) -> Measurements:
        """Return the figures.

        Raises
        ------
        DeadlineError
            The loop is busy, or has ended.
        """
        answer: Future[Measurements] | None = None
        try:
            answer = ask_loop(self._loop, lambda: self.measure())
            return answer.result(ASK_S)
        except (TimeoutError, RuntimeError):  # the loop is busy, or closed
            if answer is not None:
                answer.cancel()
            raise DeadlineError(operation="a scrape", seconds=ASK_S, waiting_for="the node's loop") from None


def _is_here(host: str) -> bool:
    """Whether this is an address, or this host's name: the owner of another name could point it here."""
    return is_loopback(host) or ip_of(host) is not None


def _text(status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status, headers)
