"""The table of figures: names that Prometheus takes, each once, and none that a node never says."""

from __future__ import annotations

import re

from zmqps.core.protocol.figures import BOUNDS, OF_COORDINATOR, OF_NODES


def test_each_figure_has_one_name_and_one_metric() -> None:
    for figures in (OF_NODES, OF_COORDINATOR):
        assert len({figure.name for figure in figures}) == len(figures)
        assert len({figure.metric for figure in figures}) == len(figures)


def test_metrics_are_named_as_prometheus_wants_them() -> None:
    for figure in (*OF_NODES, *OF_COORDINATOR):
        assert re.fullmatch(r"zmqps(_[a-z]+)+", figure.metric), figure.metric
        assert figure.metric.endswith("_total") == (figure.kind == "counter"), figure.metric
        assert figure.help[0].isupper(), figure.help
        assert figure.help.endswith("."), figure.help


def test_histograms_have_bounds_that_ascend() -> None:
    assert {figure.name for figure in OF_NODES if figure.kind == "histogram"} == set(BOUNDS)
    for bounds in BOUNDS.values():
        assert list(bounds) == sorted(set(bounds))
