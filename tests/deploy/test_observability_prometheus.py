"""The rules and the figures, as Prometheus itself reads them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.deploy.conftest import Observe
from tests.deploy.test_observability import OBSERVABILITY, queries
from tests.leaks import assert_gone
from tests.pace import allow
from tests.team import PATIENCE, Team
from tests.web.test_metrics import CATALOGUE
from zmqps.core.node.measured import Counted, Known, Measurements
from zmqps.core.protocol.figures import BOUNDS, OF_COORDINATOR, OF_NODES, SCOPES
from zmqps.web.metrics import exposed

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here: apt install prometheus"),
]

PARAMS = {"w": np.zeros(1000, np.float32)}
RULES = ("recording.yml", "alerts.yml", "rules_test.yml", "prometheus.yml")
#: Panels that show nothing where all is well, or where nobody has a GPU, copies, tables or checkpoints.
MAY_BE_EMPTY = re.compile(r"ALERTS|checkpoint|table|replication|staleness_updates:p95|retries")


def promtool(*arguments: str, directory: Path = OBSERVABILITY, text: str = "") -> subprocess.CompletedProcess[str]:
    command = ["promtool", *arguments]
    return subprocess.run(
        command, cwd=directory, input=text, capture_output=True, text=True, timeout=allow(50), check=False
    )


def everything() -> Measurements:
    """Return all figures there are."""
    counted = [
        Counted(
            scope=scope, role="server" if scope == "job" else scope, rank=0, job="a",
            counters={f.name: [1.0, 1, *[0] * len(BOUNDS[f.name])] if f.kind == "histogram" else 1 for f in OF_NODES},
        )
        for scope in SCOPES
    ]  # fmt: skip
    return Measurements(counted, [Known(f.name, 1, {label: "x" for label in f.labels}) for f in OF_COORDINATOR])


def test_promtool_finds_nothing_wrong_with_any_figure_there_can_be() -> None:
    body, _ = exposed(everything)
    assert {name for name in CATALOGUE if f"# TYPE {name} ".encode() not in body} == set()
    result = promtool("check", "metrics", text=body.decode())
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    wrong = promtool("check", "metrics", text=body.decode().replace("zmqps_pushes_total", "zmqps_pushes"))
    assert 'counter metrics should have "_total" suffix' in wrong.stderr


def test_promtool_finds_nothing_wrong_with_configuration_and_rules() -> None:
    for arguments in (["config", "prometheus.yml"], ["rules", "recording.yml", "alerts.yml"]):
        result = promtool("check", *arguments)
        assert result.returncode == 0, result.stderr
        assert "SUCCESS" in result.stdout


def test_alerts_are_raised_where_they_should_be_and_nowhere_else() -> None:
    result = promtool("test", "rules", "rules_test.yml")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("was", "becomes"),
    [("[1m])) > 5", "[1m])) > 8"), ("> 2 * avg", "> 4 * avg"), ("3600)) < 0", "60)) < 0"), ("> 0.1 *", "> 0.5 *")],
)
def test_a_mistake_in_a_rule_is_seen_by_its_test(tmp_path: Path, was: str, becomes: str) -> None:
    for name in RULES:
        shutil.copy(OBSERVABILITY / name, tmp_path)
    alerts = tmp_path / "alerts.yml"
    assert alerts.read_text().count(was) == 1
    alerts.write_text(alerts.read_text().replace(was, becomes))
    assert promtool("test", "rules", "rules_test.yml", directory=tmp_path).returncode == 1


# --- Prometheus itself ------------------------------------------------------------------------


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[str]:
    """Where a cluster whose two workers train answers scrapes."""
    over = threading.Event()
    with zmqps.LocalCluster(
        zmqps.Servers(2, kernels="numpy"),
        watching=zmqps.Watching(page="0"),
        limits=zmqps.Limits(heartbeat_interval=0.2),
        directory=tmp_path / "logs",
    ) as cluster:
        found = re.search(r"metrics at http://(\S+)/metrics", (tmp_path / "logs" / "coordinator.log").read_text())
        assert found

        def train(worker: zmqps.Worker) -> None:
            while not over.is_set():
                worker.push({"w": PARAMS["w"] + 1}, timeout=PATIENCE)
                worker.log({"loss": 0.5})
                over.wait(0.02)

        with Team(cluster.address, 2, PARAMS, optimizer=zmqps.optim.sgd(0.1), mode="async", workers=2) as team:
            thread = threading.Thread(target=team.all, args=(train,))
            thread.start()
            try:
                yield found[1]
            finally:
                over.set()
                thread.join()


def ask(address: str, path: str, **arguments: str) -> Any:
    with urllib.request.urlopen(
        f"{address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=allow(10)
    ) as answer:
        return json.loads(answer.read())["data"]


def results(address: str, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(address, "query", query=query)["result"]
    return found


def test_prometheus_scrapes_a_cluster_and_answers_what_the_dashboard_asks(observe: Observe, scraped: str) -> None:
    running = observe("--metrics", scraped, "--port", "0", "--every", "1s")
    address = running.line().split()[1].removesuffix("/alerts")
    until = time.monotonic() + PATIENCE
    waited_for = {name: query for name, query in queries().items() if not MAY_BE_EMPTY.search(query)}
    while empty := [name for name, query in waited_for.items() if not results(address, query)]:
        assert time.monotonic() < until, (empty, ask(address, "targets"))
        time.sleep(0.2)
    for query in queries().values():  # they are understood, whatever they find
        results(address, query)
    assert {r["metric"]["rank"] for r in results(address, 'zmqps_pushes_total{job="default", role="worker"}')} == {
        "0",
        "1",
    }
    [steps] = results(address, "job:zmqps_steps:rate1m")
    assert steps["metric"] == {"__name__": "job:zmqps_steps:rate1m", "cluster": "zmqps", "job": "default"}
    assert float(steps["value"][1]) > 0
    assert [a for a in ask(address, "alerts")["alerts"] if a["state"] == "firing"] == [], "all is well"
    [group] = [g for g in ask(address, "rules")["groups"] if g["file"].endswith("alerts.yml")]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    children = running.children()
    assert any(child.name() == "prometheus" for child in children)
    running.popen.terminate()
    assert running.popen.wait(PATIENCE) == 0
    assert_gone(children, PATIENCE)


def test_prometheus_goes_when_what_has_started_it_is_killed(observe: Observe, scraped: str) -> None:
    running = observe("--metrics", scraped, "--port", "0")
    assert running.line().startswith("Prometheus")
    children = running.children()
    running.popen.kill()
    assert_gone(children, PATIENCE)
