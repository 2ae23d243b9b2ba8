"""A running cluster fills every line of the catalogue, but for what takes a fault: that, a simulated one does."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.simulator.scenarios import SCENARIOS
from tests.team import PATIENCE, Team
from zmqps.core.coordinator.watching.watching import Watching
from zmqps.core.protocol.figures import OF_COORDINATOR, OF_NODES, Scope
from zmqps.errors import NonFiniteGradientError, TableFullError

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.processes

#: Counters that stay 0 in a cluster that is well. Which scenario of the simulator makes each go up.
FAULTS = {
    "duplicates": "async-everything",
    "retries": "async-everything",
    "late": "sync-backup-stops",
    "dropped": "sync-backup-stops",
    "refused": "sync-several",
}
PARAMS = {"w": np.zeros(5000, np.float32)}
GRADIENTS = {"w": np.ones(5000, np.float32)}
CATALOGUE = {figure.metric: figure for figure in (*OF_NODES, *OF_COORDINATOR)}

Samples = Mapping[str, Mapping[str, float]]


def scrape(url: str) -> dict[str, dict[str, float]]:
    """Return the samples of each metric, by their labels as text; of a histogram its count."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith(("_bucket", "_sum")) and family.type == "histogram":
                continue
            name = sample.name.removesuffix("_count") if family.type == "histogram" else sample.name
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if value)
            found[name][labels] = sample.value
    return dict(found)


def url_in(log: Path) -> str:
    """Return where a node says that its metrics are."""
    found = re.search(r"metrics at (http://\S+/metrics)", log.read_text())
    assert found, log.read_text()
    return found[1]


def wait_for(url: str, good: Callable[[Samples], bool]) -> Samples:
    """Scrape until the figures are as they should be: heartbeats bring them."""
    until = time.monotonic() + PATIENCE
    while not good(found := scrape(url)):
        assert time.monotonic() < until, missing(found)
        time.sleep(0.05)
    return found


def missing(found: Samples) -> set[str]:
    """Return the metrics of which there is no series, and the counters that none of their series has counted."""
    counters = {f.metric for f in CATALOGUE.values() if f.kind != "gauge" and f.name not in (*FAULTS, "lost")}
    return {m for m in CATALOGUE if m not in found} | {m for m in counters if not any(found.get(m, {}).values())}


def is_complete(found: Samples) -> bool:
    """Whether the last of all that the workers of the job have done is told: messages bring it one by one."""
    ranks = [f"rank={rank},role=worker" for rank in range(2)]
    return (
        [found["zmqps_value"].get(f"job=default,name=loss,{rank}") for rank in ranks] == [0.25, 0.5]
        and [found["zmqps_pushes_total"].get(f"job=default,{rank}") for rank in ranks] == [4, 4]
        and found["zmqps_step_seconds"].get(f"job=default,{ranks[0]}") == 3
    )


def train(team: Team) -> None:
    """Do everything once that a figure of a job tells of."""
    for step in range(4):
        team.step(lambda rank: GRADIENTS)
        team.workers[0].log({"loss": 1.0 / (step + 1)}, step=step)
    with pytest.raises(NonFiniteGradientError):
        team.workers[0].push({"w": GRADIENTS["w"] * np.nan})
    for _ in range(20_000):  # more than it takes between two looks
        team.workers[1].log({"loss": 0.5})
    team.workers[0].checkpoint(timeout=PATIENCE)


def train_rows(worker: zmqps.Worker) -> None:
    """Let a table refuse rows, and let others expire."""
    table = zmqps.table(64, optimizer=zmqps.optim.sgd(1.0), capacity_nbytes=1 << 20, expire_steps=1)
    worker.init({}, tables={"users": table}, mode="async", timeout=PATIENCE)
    users = worker.table("users", timeout=PATIENCE)
    for step in range(4):
        ids = np.arange(100) + 100 * step
        users.push(ids, np.ones((100, 64), np.float32), timeout=PATIENCE)
    ids = np.arange(20_000)
    with pytest.raises(TableFullError):
        users.push(ids, np.ones((ids.size, 64), np.float32), timeout=PATIENCE)


def test_a_running_cluster_fills_every_line_of_the_catalogue(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(
            zmqps.LocalCluster(
                zmqps.Servers(2, kernels="numpy"), replicas=1, saving=zmqps.Saving(checkpoint=tmp_path / "saved"),
                watching=zmqps.Watching(page="0"), limits=zmqps.Limits(heartbeat_interval=0.2), directory=tmp_path,
            )
        )  # fmt: skip
        options: dict[str, Any] = {"optimizer": zmqps.optim.adam(0.1), "mode": "sync", "push_codec": "int8"}
        team = stack.enter_context(Team(cluster.address, 2, PARAMS, workers=2, **options))
        rows = stack.enter_context(zmqps.connect(cluster.address, job="sparse", timeout=PATIENCE))
        train(team)
        train_rows(rows)
        found = wait_for(url_in(tmp_path / "coordinator.log"), lambda found: not missing(found) and is_complete(found))
    jobs = {"job=default", "job=sparse"}
    assert {series.partition(",")[0] for series in found["zmqps_pushes_total"]} == jobs
    assert found["zmqps_pushes_total"]["job=default,rank=1,role=worker"] == 4
    assert found["zmqps_step_seconds"]["job=default,rank=0,role=worker"] == 3, "from one step to the next"
    assert found["zmqps_members"] == {"role=server": 2, "job=default,role=worker": 2, "job=sparse,role=worker": 1}
    assert {series.rpartition(",")[2] for series in found["zmqps_table_rows"]} == {"table=users"}
    assert found["zmqps_value"] == {
        "job=default,name=loss,rank=0,role=worker": 0.25,
        "job=default,name=loss,rank=1,role=worker": 0.5,
    }


def test_a_worker_answers_for_itself_until_it_is_closed() -> None:
    with (
        InProcessCluster(servers=1) as cluster,
        zmqps.connect(cluster.address, metrics="0", timeout=PATIENCE) as worker,
    ):
        url = worker._member.connection.scraped.address
        worker.init(PARAMS, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=PATIENCE)
        for _ in range(3):
            worker.push_pull(GRADIENTS, timeout=PATIENCE)
        found = scrape(url)
        assert found["zmqps_pushes_total"] == {"job=default,rank=0,role=worker": 3}
        assert found["zmqps_staleness_updates"] == {"job=default,rank=0,role=worker": 3}
        assert found["zmqps_resident_memory_bytes"]["job=default,rank=0,role=worker"] > 1 << 20
        assert {labels for of in found.values() for labels in of} == {"job=default,rank=0,role=worker"}
        worker.rejoin(timeout=PATIENCE)
        assert scrape(url)["zmqps_pushes_total"] == {"job=default,rank=0,role=worker": 0}, "a new life counts anew"
    with pytest.raises(urllib.error.URLError):
        scrape(url)


def test_a_worker_asks_the_environment_where_to_answer(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    monkeypatch.setenv("ZMQPS_METRICS", "127.0.0.1:0")
    monkeypatch.setenv("ZMQPS_METRICS_TOKEN", str(tmp_path / "token"))
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address, timeout=PATIENCE) as worker:
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            scrape(worker._member.connection.scraped.address)
        refused.value.close()
        with zmqps.connect(cluster.address, metrics="", timeout=PATIENCE) as silent:
            assert silent._member.connection.scraped.address == ""


def said_in(name: str, monkeypatch: pytest.MonkeyPatch) -> Mapping[tuple[Scope, str], float]:
    """Return the most that heartbeats have said of each figure in a simulated cluster."""
    most: dict[tuple[Scope, str], float] = defaultdict(float)

    def heartbeat(self: Watching, member: Any, counters: Mapping[str, Any], run: Any, now: float) -> None:
        told: list[tuple[Scope, Mapping[str, Any]]] = [("server" if member.role == "server" else "worker", counters)]
        for scope, of in (*told, *(("job", of_job) for of_job in counters.get("jobs", {}).values())):
            for figure in OF_NODES:
                if type(value := of.get(figure.name)) in (int, float):
                    most[scope, figure.name] = max(most[scope, figure.name], value)

    monkeypatch.setattr(Watching, "heartbeat", heartbeat)
    for seed in range(2):
        SCENARIOS[name].simulation(seed).run()
    return most


@pytest.mark.parametrize("scenario", sorted(set(FAULTS.values())))
def test_what_goes_wrong_is_counted_under_the_names_of_the_catalogue(scenario: str, monkeypatch) -> None:
    said = said_in(scenario, monkeypatch)
    for figure in OF_NODES:
        if FAULTS.get(figure.name) == scenario:
            assert all(said[scope, figure.name] > 0 for scope in figure.of if scope != "coordinator"), figure
