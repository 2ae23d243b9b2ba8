"""What a node has counted as families of metrics: names, labels and values, without a library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zmqps.core.node.measured import Counted, Measurements
from zmqps.core.protocol.figures import OF_COORDINATOR, OF_NODES, TABLE, Figure, is_histogram

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
