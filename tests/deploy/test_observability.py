"""What is handed to Prometheus and Grafana names figures that there are, and runs as long as its user wants it to."""

from __future__ import annotations

import http.server
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE
from tests.deploy.commands import DEPLOY
from tests.deploy.conftest import Observe
from tests.imports import ROOT
from tests.leaks import assert_gone
from tests.web.samples import small
from zmqps.core.protocol.figures import OF_COORDINATOR, OF_NODES
from zmqps.web.metrics import answering
from zmqps.web.server import WebPlace

pytest.importorskip("prometheus_client")

OBSERVABILITY = DEPLOY / "observability"
#: What Prometheus itself makes.
BUILT_IN = {"up", "ALERTS"}
#: A program in place of Prometheus or Grafana: it says what it was given, then runs until it is asked to end.
STAND_IN = """#!/bin/sh
echo "\\"Listening on\\" address=$LISTENS"
echo "$0 $@ PROMETHEUS_URL=$PROMETHEUS_URL PROVISIONING=$GF_PATHS_PROVISIONING"
exec sleep 600
"""


def metrics() -> set[str]:
    """Return the names that a scrape can have."""
    found = set(BUILT_IN)
    for figure in (*OF_NODES, *OF_COORDINATOR):
        parts = ("_bucket", "_sum", "_count") if figure.kind == "histogram" else ("",)
        found |= {figure.metric + part for part in parts}
    return found


def recorded() -> set[str]:
    return set(re.findall(r"record: (\S+)", (OBSERVABILITY / "recording.yml").read_text()))


def named(query: str) -> set[str]:
    """Return the metrics that a query names: words that no parenthesis or `=` follows, outside of labels and texts."""
    query = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", query)
    query = re.sub(r"\b(by|without|on|ignoring|group_left|group_right|label_values)\s*\([^)]*\)", " ", query)
    return set(re.findall(r"(?<![\w:.])[a-zA-Z_][\w:]*(?![\w:]*\s*\()", query)) - {
        "and",
        "or",
        "unless",
        "bool",
        "offset",
    }


def queries() -> dict[str, str]:
    """Return the queries of the dashboard, with all clusters and jobs chosen, by panel and number."""
    found: dict[str, str] = {}
    for panel in json.loads((OBSERVABILITY / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$cluster", ".*").replace("$job", ".*")
            found[f"{panel['id']} {panel['title']}, {target['refId']}"] = query
    return found


def expressions(name: str) -> list[str]:
    """Return what the rules of a file compute."""
    text = (OBSERVABILITY / name).read_text()
    return [" ".join(found.split()) for found in re.findall(r"expr: (?:>\n)?((?:.|\n {10})+)", text)]


# --- names ------------------------------------------------------------------------------------


def test_every_rule_names_figures_of_the_catalogue() -> None:
    for name, number in (("recording.yml", 17), ("alerts.yml", 13)):
        found = expressions(name)
        assert len(found) == number
        for expression in found:
            assert named(expression) <= metrics() | recorded() | {"vector"}, expression


def test_every_panel_names_figures_of_the_catalogue_or_of_the_rules() -> None:
    found = queries()
    assert len(found) > 50
    for where, query in found.items():
        assert named(query), where
        assert named(query) <= metrics() | recorded(), where
    text = (OBSERVABILITY / "dashboard.json").read_text()
    for metric in re.findall(r"label_values\((\w+)", text):
        assert metric in metrics()


def test_a_figure_that_is_none_would_be_noticed() -> None:
    assert named('sum by (job) (rate(zmqps_no_such_total{job=~".*"}[5m])) > 2 * job:zmqps_steps:rate1m offset 5m') == {
        "zmqps_no_such_total",
        "job:zmqps_steps:rate1m",
    }


def test_panels_of_the_dashboard_have_a_place_of_their_own() -> None:
    panels = json.loads((OBSERVABILITY / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_alerts_that_documents_name_exist() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (OBSERVABILITY / "alerts.yml").read_text()))
    for path in (ROOT / "docs" / "watching.md", OBSERVABILITY / "README.md"):
        assert set(re.findall(r"`(Zmqps\w+)`", path.read_text())) <= alerts, path.name


def test_every_alert_has_a_test() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (OBSERVABILITY / "alerts.yml").read_text()))
    tests = (OBSERVABILITY / "rules_test.yml").read_text()
    fires = re.findall(r"alertname: (\w+)\n\s+eval_time: \w+\n\s+exp_alerts:\n\s+- ", tests)
    passes = re.findall(r"alertname: (\w+), eval_time: \w+, exp_alerts: \[\]", tests)
    assert set(fires) == set(passes) == alerts


# --- programs ---------------------------------------------------------------------------------


@pytest.fixture
def queries_answered() -> Iterator[tuple[str, list[int]]]:
    """Where a Prometheus would listen that reads what it keeps while it is asked twice, and what it has answered."""
    answered: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answered.append(503 if len(answered) < 2 else 200)
            self.send_response(answered[-1] if self.path == "/-/ready" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}", answered
        server.shutdown()
        thread.join()


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queries_answered: tuple[str, list[int]]) -> str:
    """A search path with programs in place of Prometheus and Grafana."""
    monkeypatch.setenv("LISTENS", queries_answered[0])
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("prometheus", "grafana"):
        (place / name).write_text(STAND_IN)
        (place / name).chmod(0o755)
    return f"{place}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def answers() -> Iterator[str]:
    """Where scrapes are answered."""
    with answering(WebPlace("127.0.0.1:0"), small, "coordinator", logging.getLogger("zmqps.tests")) as url:
        yield url.removeprefix("http://").removesuffix("/metrics")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_what_was_started_ends_with_it_however_that_ends(
    observe: Observe, stand_ins, queries_answered, answers, number
) -> None:
    running = observe("--metrics", answers, PATH=stand_ins)
    assert running.line().startswith(f"Prometheus  http://{queries_answered[0]}/alerts")
    assert queries_answered[1] == [503, 503, 200], "it is named once it answers, not once it listens"
    assert running.line() == "Grafana     http://127.0.0.1:3000/d/zmqps\n"
    children = running.children()
    assert len(children) == 2
    running.popen.send_signal(number)
    assert running.popen.wait(PATIENCE) == (-number if number == signal.SIGKILL else 0)
    assert_gone(children, PATIENCE)


def test_where_one_ends_by_itself_the_other_is_ended_and_its_last_words_are_shown(
    observe: Observe, stand_ins, answers
) -> None:
    running = observe("--metrics", answers, PATH=stand_ins)
    running.line(), running.line()
    children = running.children()
    children[1].kill()
    assert running.popen.wait(PATIENCE) == 1
    assert_gone(children, PATIENCE)


def test_grafana_is_told_where_prometheus_and_the_dashboard_are(
    observe: Observe, stand_ins, queries_answered, answers, tmp_path
) -> None:
    running = observe("--metrics", answers, PATH=stand_ins)
    running.line(), running.line()
    log = tmp_path / "observe" / "grafana.log"
    until = time.monotonic() + PATIENCE
    while "PROVISIONING" not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    source = f"http://{queries_answered[0]}"
    assert f"PROMETHEUS_URL={source} PROVISIONING={tmp_path}/observe/provisioning" in log.read_text()
    assert (tmp_path / "observe" / "provisioning" / "datasources" / "datasource.yml").is_file()
    config = (tmp_path / "observe" / "prometheus.yml").read_text()
    assert f'targets: ["{answers}"]' in config


def test_without_a_cluster_the_command_that_starts_one_is_told(observe: Observe, stand_ins) -> None:
    running = observe("--metrics", "127.0.0.1:1", PATH=stand_ins)
    assert 'make up ARGS="--page 127.0.0.1:1"' in running.line()
    assert running.popen.wait(PATIENCE) == 1
