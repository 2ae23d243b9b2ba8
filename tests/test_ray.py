"""Clusters that Ray places: what is asked of Ray, and with Ray installed what becomes of the processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import zmqps.ray
from tests.imports import ROOT
from tests.leaks import RUN_TAG
from tests.pace import allow
from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.keys import create
from zmqps.launch.keeper import Ended
from zmqps.ray import Outcome, asked, resources

PATIENCE = allow(120.0)
NAMES = ["coordinator", "server-0", "worker-0", "worker-1"]


def test_the_package_does_not_import_ray() -> None:
    program = "import sys, zmqps.ray; print('ray' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True).stdout == "False\n"


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[ray\]'"):
        zmqps.ray.start()


@for_each(
    "options, text",
    [
        ({"servers": 0}, "servers must be"),
        ({"servers": zmqps.Servers(servers_per_gpu=1)}, "Placement"),
        ({"strategy": "SPREAD"}, "pass placement=zmqps.ray.Placement\\(strategy="),
        ({"placement": "SPREAD"}, "placement comes from zmqps.ray.Placement"),
        ({"command": "python train.py", "workers": 1}, "a program and its arguments"),
        ({"command": ["python"]}, "workers=4"),
        ({"security": zmqps.Security(keys="keys"), "insecure": True}, "give keys"),
        ({"security": zmqps.Security(job_secret="secret")}, "keys in place of a job secret"),
        ({"security": zmqps.Security(token="a")}, "a token is what its workers connect with"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_anything_starts(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        zmqps.ray.start(**options)


@for_each(
    "options, text",
    [
        ({"strategy": "EVERYWHERE"}, "strategy must be"),
        ({"restart_workers": -1}, "restart_workers must be"),
        ({"worker_resources": {"CPU": 0}}, "reserves nothing"),
        ({"server_resources": {"GPU": "one"}}, "server_resources"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        zmqps.ray.Placement(**options)


def test_an_actor_takes_what_is_reserved_for_its_process() -> None:
    assert asked(resources("r", None)) == {"num_cpus": 1.0, "num_gpus": 0, "resources": {}}
    told = {"CPU": 2, "GPU": 0.5, "memory": 1e9, "special": 1}
    assert asked(resources("r", told)) == {"num_cpus": 2, "num_gpus": 0.5, "memory": 1e9, "resources": {"special": 1}}
    assert asked({}) == {"num_cpus": 0, "num_gpus": 0, "resources": {}}


def test_the_end_of_all_workers_is_the_end() -> None:
    outcome = Outcome(NAMES)
    for name in ("worker-1", "server-0", "coordinator"):
        outcome.take(name, Ended(0, ""))
        assert outcome.code is None
    outcome.take("worker-0", Ended(0, ""))
    assert outcome.code == 0


@for_each("code, end", [(0, 0), (75, 75)])
def test_a_worker_that_has_drained_has_not_failed(code: int, end: int) -> None:
    outcome = Outcome(NAMES)
    outcome.take("worker-1", Ended(75, ""))
    assert (outcome.code, outcome.failure) == (None, "")
    outcome.take("server-0", Ended(0, ""))
    outcome.take("worker-0", Ended(code, ""))
    assert (outcome.code, outcome.failure) == (end, "")


def test_without_workers_the_end_of_the_coordinator_is_the_end() -> None:
    outcome = Outcome(NAMES[:2])
    outcome.take("server-0", Ended(0, ""))
    assert outcome.code is None
    outcome.take("coordinator", Ended(0, ""))
    assert outcome.code == 0


@for_each(
    "name, ended, code, text",
    [
        ("worker-1", Ended(7, "  bad luck"), 7, "worker-1 failed with exit code 7; its last lines:\n  bad luck"),
        ("server-0", Ended(-9, "  (it said nothing)"), 137, "server-0 failed with signal SIGKILL"),
        ("coordinator", None, 8, "Ray has lost the actor of coordinator"),
    ],
)
def test_the_first_failure_is_what_counts(name: str, ended: Ended | None, code: int, text: str) -> None:
    outcome = Outcome(NAMES)
    outcome.take(name, ended)
    outcome.take("worker-0", Ended(1, "  and then this"))
    assert outcome.code == code
    assert outcome.failure.startswith(text)


# --- with Ray -----------------------------------------------------------------------------------

#: Three nodes of Ray on this host, until standard input ends.
NODES = """if True:
    import sys
    from ray.cluster_utils import Cluster
    cluster = Cluster(True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=3)
    print("at", cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()"""

#: Trains, and ends with the code of the cluster.
TRAIN = """if True:
    import sys, zmqps.ray
    command = ["python", "examples/digits.py", "--passes", "12"]
    placement, security = zmqps.ray.Placement(strategy="SPREAD"), zmqps.Security(keys=sys.argv[1])
    cluster = zmqps.ray.start(2, 4, command=command, placement=placement, security=security)
    sys.exit(cluster.wait(200))"""

#: Starts what never ends, and says on each line of its input who is there.
WAIT = """if True:
    import json, sys, zmqps.ray
    command = ["sh", "-c", "sleep 1000 & echo $$ $! >> $PIDS; wait"]
    placement, limits = zmqps.ray.Placement(restart_workers=2), zmqps.Limits(heartbeat_timeout=3.0)
    env = {"PIDS": sys.argv[1]}
    with zmqps.ray.start(1, 1, command=command, env=env, placement=placement, limits=limits) as cluster:
        print("ready", flush=True)
        for line in sys.stdin:
            pids = {member["name"]: member["pid"] for member in cluster.status()["members"]}
            print("pids", json.dumps(pids), flush=True)"""

FAIL = """if True:
    import sys, zmqps.ray
    command = ["sh", "-c", "echo bad luck; exit 9"]
    sys.exit(zmqps.ray.start(1, 1, command=command).wait(200))"""

TOO_MUCH = """if True:
    import zmqps.ray
    placement = zmqps.ray.Placement(server_resources={"CPU": 100})
    zmqps.ray.start(servers=2, placement=placement, timeout=3)"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("ray")
    env = {**os.environ, "RAY_raylet_start_wait_time_s": "100", "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", NODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as nodes:
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        try:
            found = next((line for line in nodes.stdout if line.startswith(b"at ")), b"")
            assert found, "Ray did not start"
            yield found.split()[1].decode()
        finally:
            nodes.stdin.close()
            nodes.wait(PATIENCE)


@pytest.fixture
def driver(address: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
        env = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT), "RAY_DEDUP_LOGS": "0"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", program, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                env=env,
            )
        )
        return started[-1]

    yield begin
    for popen in started:
        popen.kill()
        popen.communicate()


def ours() -> set[psutil.Process]:
    """Return the nodes and workers of clusters that keepers of this run of the tests have started."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone meanwhile, or somebody else's
            words = " ".join(process.cmdline())
            if "zmqps-keeper" in words or "/launch/guard.py apart" in words or "--parent-fd" in words:
                if process.environ().get(RUN_TAG) == os.environ[RUN_TAG]:
                    found.add(process)
    return found


def until(condition: Callable[[], Any]) -> Any:
    """Return what a condition is once it holds; Ray tells nobody when its actors end."""
    ends_at = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < ends_at, "it did not come to that"
        time.sleep(0.05)
    return found


def next_line(popen: subprocess.Popen[str], start: str) -> str:
    """Return the next line that begins so, without what Ray prints."""
    assert popen.stdout is not None
    said = []
    for line in popen.stdout:
        said.append(line)
        if line.startswith(start):
            return line.removeprefix(start)
    raise AssertionError("".join(said))


@pytest.mark.engines
@pytest.mark.timeout(300)
def test_digits_are_learned_and_nothing_is_left(driver: Callable[..., Any], tmp_path: Path) -> None:
    create(tmp_path / "keys")
    before = ours()
    popen = driver(TRAIN, tmp_path / "keys")
    said, _ = popen.communicate(timeout=allow(200))
    assert popen.returncode == 0, said
    found = [float(text) for text in re.findall(r"worker \d: test accuracy (\d\.\d+)", said)]
    assert len(found) == 4, said
    assert min(found) > 0.9
    assert ours() <= before


@pytest.mark.engines
@pytest.mark.timeout(300)
def test_who_is_killed_comes_back_and_all_end_with_the_driver(driver: Callable[..., Any], tmp_path: Path) -> None:
    before = ours()
    popen = driver(WAIT, tmp_path / "pids")
    next_line(popen, "ready")

    def workers() -> list[str]:
        return (tmp_path / "pids").read_text().splitlines() if (tmp_path / "pids").exists() else []

    def nodes() -> dict[str, int]:
        popen.stdin.write("\n")
        popen.stdin.flush()
        found: dict[str, int] = json.loads(next_line(popen, "pids "))
        return found

    [first] = until(workers)
    old, child = map(int, first.split())
    left_alone = psutil.Process(child)
    psutil.Process(old).kill()
    until(lambda: len(workers()) == 2)
    left_alone.wait(PATIENCE)
    server = nodes()["server-0"]
    psutil.Process(server).kill()
    until(lambda: nodes().get("server-0", server) != server)
    mine = [*(ours() - before), *(psutil.Process(int(pid)) for pid in workers()[-1].split())]
    assert len(mine) >= 5  # two nodes, three guards; the worker and its child
    popen.kill()
    assert psutil.wait_procs(mine, PATIENCE)[1] == []


@pytest.mark.engines
@pytest.mark.timeout(300)
def test_a_failure_is_the_exit_code_and_its_last_lines_are_shown(driver: Callable[..., Any]) -> None:
    popen = driver(FAIL)
    said, _ = popen.communicate(timeout=allow(200))
    assert popen.returncode == 9, said
    assert "worker-0 failed with exit code 9; its last lines:\n  bad luck" in said


@pytest.mark.engines
@pytest.mark.timeout(300)
def test_what_ray_has_no_room_for_is_said(driver: Callable[..., Any]) -> None:
    said, _ = driver(TOO_MUCH).communicate(timeout=allow(200))
    assert re.search(r"DeadlineError: the start of the cluster timed out .* Ray to find room for", said), said
