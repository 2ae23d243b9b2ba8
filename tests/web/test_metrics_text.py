"""What Prometheus reads: another parser finds the same figures in it."""

from __future__ import annotations

import math

import pytest

from tests.web.samples import small

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from zmqps.core.node.measured import Measurements  # noqa: E402
from zmqps.web.metrics import exposed  # noqa: E402

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def test_a_parser_finds_every_figure_with_its_labels() -> None:
    body, content_type = exposed(small)
    assert content_type.startswith("text/plain")
    found = {family.name: family for family in text_string_to_metric_families(body.decode())}
    pushes = {(s.labels["role"], s.labels["rank"]): s.value for s in found["zmqps_pushes"].samples}
    assert pushes == {("worker", "0"): 3, ("worker", "1"): 3, ("server", "0"): 6}
    assert found["zmqps_pushes"].type == "counter"
    assert found["zmqps_steps"].samples[0].labels == {"job": "a"}
    (value,) = found["zmqps_value"].samples
    assert (value.labels["name"], math.isnan(value.value)) == ('loss "x"\n', True)


def test_a_histogram_counts_up_to_each_bound() -> None:
    body, _ = exposed(small)
    found = {family.name: family for family in text_string_to_metric_families(body.decode())}["zmqps_step_seconds"]
    first = [s for s in found.samples if s.labels["rank"] == "0"]
    buckets = {s.labels["le"]: s.value for s in first if s.name.endswith("_bucket")}
    assert (buckets["0.0005"], buckets["0.001"], buckets["+Inf"]) == (0, 2, 2)
    assert {s.name: s.value for s in first if "le" not in s.labels} == {
        "zmqps_step_seconds_count": 2,
        "zmqps_step_seconds_sum": 1.5,
    }


def test_newer_scrapers_get_openmetrics() -> None:
    body, content_type = exposed(small, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_a_node_without_figures_says_nothing() -> None:
    assert exposed(lambda: Measurements([]))[0] == b""
