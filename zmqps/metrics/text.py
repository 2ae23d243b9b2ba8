"""What a node has counted as families of metrics, and those as Prometheus reads them by its library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from zmqps.core.node.measured import Counted, Measurements
from zmqps.core.protocol.figures import BOUNDS, OF_COORDINATOR, OF_NODES, TABLE, Figure, is_histogram
from zmqps.errors import ConfigurationError
from zmqps.extras import advice

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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
