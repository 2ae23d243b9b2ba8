"""Families of metrics as Prometheus reads them: the one place that knows its library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from zmqps.core.node.measured import Measurements
from zmqps.core.protocol.figures import BOUNDS
from zmqps.errors import ConfigurationError
from zmqps.extras import advice
from zmqps.metrics.families import Family, families

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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
