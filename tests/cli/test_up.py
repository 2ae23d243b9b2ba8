"""``zmqps up`` and ``down``: whole clusters, from their start to when nothing is left."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

import zmqps as zmqps_package
from tests.inprocess import InProcessCluster
from tests.leaks import assert_gone
from tests.net.system.test_addresses import has_ipv6
from tests.pace import allow
from tests.tables import for_each
from zmqps import keys
from zmqps.checkpoint import open_checkpoint
from zmqps.cli.main import run
from zmqps.cli.running.state import Claim, State, read_state, state_path
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError, ShutdownError
from zmqps.logs.lines import read_entry

ANYWHERE = ("--address", "tcp://127.0.0.1:0")
UP = ("up", *ANYWHERE, "--kernels", "numpy")
PATIENCE = allow(20.0)
#: Seconds for a test that starts one cluster: `--timeout` of pytest, in pyproject.toml.
STARTING = 60.0


def processes_of(supervisor: int) -> list[psutil.Process]:
    parent = psutil.Process(supervisor)
    return [parent, *parent.children(recursive=True)]


@pytest.mark.processes
def test_a_detached_cluster_is_found_looked_at_and_ended(zmqps, tmp_path) -> None:
    started = zmqps(*UP, "--servers", "2", "--detach")
    assert started.returncode == exits.OK, started.stderr
    state = json.loads(state_path(tmp_path).read_text())
    assert state["address"] in started.stdout
    assert state["logs"] in started.stdout
    processes = processes_of(state["pid"])
    assert len(processes) == 4

    status = json.loads(zmqps("status", "--json").stdout)
    assert [member["role"] for member in status["members"]] == ["server", "server"]
    tables = zmqps("status").stdout
    assert state["address"] in tables
    assert "waiting for a worker's init" in tables
    assert "no job is placed yet" in zmqps("placement").stdout

    again = zmqps(*UP)
    assert again.returncode == exits.USAGE
    assert state["address"] in again.stderr

    logs = zmqps("logs").stdout.splitlines()
    assert {line.split()[0] for line in logs} == {"coordinator", "server-0", "server-1", "zmqps"}
    times = [line.split("| ")[1][:23] for line in logs]
    assert times == sorted(times)
    assert {line.split()[0] for line in zmqps("logs", "server-1").stdout.splitlines()} == {"server-1"}
    assert zmqps("logs", "server-7").returncode == exits.USAGE

    ended = zmqps("down")
    assert ended.returncode == exits.OK
    assert state["address"] in ended.stdout
    assert_gone(processes, PATIENCE)
    assert not state_path(tmp_path).parent.exists()
    assert zmqps("down").stdout == "no cluster runs here\n"
    assert zmqps("logs").stdout  # they stay


@pytest.mark.processes
@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
def test_the_address_of_the_page_is_printed_and_answers(zmqps, tmp_path, keyed) -> None:
    secured = ("--keys", str(tmp_path / "keys")) if keyed else ()
    if keyed:
        keys.create(tmp_path / "keys")
    started = zmqps(*UP, *secured, "--servers", "1", "--detach", "--page", "127.0.0.1:0")
    try:
        assert started.returncode == exits.OK, started.stderr
        (url,) = re.findall(r"^page at (http://127\.0\.0\.1:\d+/\S*)$", started.stdout, re.MULTILINE)
        assert ("?token=" in url) is keyed
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(url, timeout=PATIENCE) as answer:
            assert b"<title>zmqps</title>" in answer.read()
    finally:
        zmqps("down", *secured)


@pytest.mark.processes
def test_commands_show_the_keys_that_the_cluster_here_was_started_with(zmqps, tmp_path) -> None:
    keys.create(tmp_path / "keys")
    started = zmqps(*UP, "--keys", "keys", "--servers", "1", "--detach")
    assert started.returncode == exits.OK, started.stderr
    try:
        address = json.loads(state_path(tmp_path).read_text())["address"]
        for command in (
            ("status",), ("jobs",), ("placement",), ("health",), ("status", "--coordinator", address),
            ("scale", "--servers", "1"), ("stack", "server-0"), ("trace", "--seconds", "0.1"),
        ):  # fmt: skip
            found = zmqps(*command)
            assert found.returncode == exits.OK, (command, found.stderr)
        keys.create(tmp_path / "others")
        assert zmqps("status", "--keys", "others", "--timeout", "1").returncode != exits.OK, "what is told wins"
    finally:
        ended = zmqps("down")
    assert ended.returncode == exits.OK, ended.stderr


def logged(zmqps: Any) -> list[dict[str, Any]]:
    """Return the entries of the last cluster's logs."""
    return [json.loads(line) for line in zmqps("logs", "--json").stdout.splitlines()]


@pytest.mark.processes
def test_the_cluster_ends_with_its_workers(zmqps, tmp_path) -> None:
    script = "echo $ZMQPS_WORKER_INDEX of $ZMQPS_COORDINATOR; echo I am $ZMQPS_LOG_NODE >&2; printf unfinished"
    result = zmqps(*UP, "--workers", "2", "--", "sh", "-c", script)
    assert result.returncode == exits.OK, result.stdout + result.stderr
    for index in (0, 1):
        lines = (tmp_path / f"runs/cluster/logs/worker-{index}.log").read_text().splitlines()
        entries = [entry for line in lines if (entry := read_entry(line))]
        assert [entry.node for entry in entries] == [f"worker-{index}"] * 3
        said = [entry.message for entry in entries]
        assert said[0].startswith(f"{index} of tcp://127.0.0.1:")
        assert said[1:] == [f"I am worker-{index}", "unfinished"], "so that its warnings can name it"
        assert {entry.text() for entry in entries} <= set(result.stdout.splitlines())
    assert not state_path(tmp_path).exists()


TRAIN = """
import os, numpy, zmqps
with zmqps.connect(os.environ["ZMQPS_COORDINATOR"], transport="tcp") as worker:
    worker.init({"w": numpy.zeros(2, "float32")}, optimizer=zmqps.optim.sgd(1.0), mode="async")
    worker.push({"w": numpy.ones(2, "float32")})
    print("at", worker.address, "is", worker.pull()["w"], [m["endpoint"] for m in worker.status()["members"]])
    worker.finish()
"""


@pytest.mark.processes
@pytest.mark.timeout(4 * STARTING)  # it starts three clusters
def test_a_cluster_listens_where_it_is_told_and_tells_what_can_be_used(zmqps) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 65535 - 20)
    ports = ("--ports", f"{first}-{first + 20}")
    for where, host in (
        (("--address", "tcp://0.0.0.0:0", "--insecure"), r"tcp://\d+\.\d+\.\d+\.\d+"),
        (("--interface", "lo", "--address", "tcp://lo:0", "--insecure"), r"tcp://127\.0\.0\.1"),
        *([(("--address", "tcp://[::1]:0"), r"tcp://\[::1\]")] if has_ipv6() else []),
    ):
        command = ("--workers", "1", "--", sys.executable, "-c", TRAIN)
        result = zmqps("up", *where, *ports, "--kernels", "numpy", *command)
        assert result.returncode == exits.OK, result.stdout + result.stderr
        found = re.search(rf"at ({host}):\d+ is \[-1\. -1\.\] \['({host}):(\d+) ipc", result.stdout)
        assert found, result.stdout
        assert "0.0.0.0" not in found[0]
        assert first <= int(found[3]) <= first + 20


@pytest.mark.processes
@pytest.mark.timeout(2 * STARTING)  # it starts two clusters
def test_workers_share_a_secret_for_their_channels(zmqps) -> None:
    script = "echo secret $ZMQPS_CHANNEL_SECRET"
    said = []
    for _ in range(2):
        zmqps(*UP, "--workers", "2", "--", "sh", "-c", script)
        found = [entry["message"] for entry in logged(zmqps) if entry["message"].startswith("secret ")]
        assert len(found) == 2
        assert found[0] == found[1]
        assert re.fullmatch(r"secret [0-9a-f]{32}", found[0])
        said.append(found[0])
    assert said[0] != said[1], "each `up` makes its own"


@pytest.mark.processes
def test_workers_get_the_key_of_a_worker_only_which_goes_with_the_cluster(zmqps, tmp_path) -> None:
    keys.create(tmp_path / "keys")
    program = (
        "import os, zmqps; zmqps.connect(os.environ['ZMQPS_COORDINATOR']).close(); "
        "print('has', *sorted(os.listdir(os.environ['ZMQPS_KEYS'])))"
    )
    script = f'echo "of $ZMQPS_KEYS"; exec {sys.executable} -c "$0"'
    result = zmqps(*UP, "--workers", "1", "--keys", "keys", "--", "sh", "-c", script, program)
    assert result.returncode == exits.OK, result.stdout + result.stderr
    assert "has cluster.pub worker.key" in result.stdout, "it has joined"
    (folder,) = re.findall(r"of (/\S+)", result.stdout)
    assert not Path(folder).parent.exists()


@pytest.mark.processes
def test_a_worker_that_fails_is_named_and_the_others_go_on(zmqps) -> None:
    script = '[ $ZMQPS_WORKER_INDEX = 0 ] && { echo "out of luck"; exit 9; }; exec 3<>/dev/null; echo fine'
    result = zmqps(*UP, "--workers", "2", "--", "sh", "-c", script)
    assert result.returncode == exits.WORKERS_FAILED
    entries = logged(zmqps)
    assert {"fine", "out of luck"} <= {entry["message"] for entry in entries}
    (failure,) = [entry["message"] for entry in entries if entry["level"] == "error"]
    assert failure == "worker-0 failed with exit code 9; its last lines:\n  out of luck"
    assert "1 of 2 workers failed: worker-0 (exit code 9)" in result.stdout.splitlines()[-1]


@pytest.mark.processes
def test_workers_that_end_without_a_goodbye_are_named_although_their_exit_code_is_0(zmqps, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, numpy as np, zmqps\n"
        "worker = zmqps.connect(os.environ['ZMQPS_COORDINATOR'], name=f'w{os.environ[\"ZMQPS_WORKER_INDEX\"]}')\n"
        "worker.init({'w': np.zeros(4, 'f4')}, optimizer=zmqps.optim.sgd(0.1), mode='async')\n"
        "worker.barrier('all have begun', timeout=30)\n"
        "os._exit(0) if worker.rank else worker.finish()\n"
    )
    result = zmqps(*UP, "--workers", "2", "--", "python", str(script))
    assert result.returncode == exits.WORKERS_FAILED, result.stdout + result.stderr
    (last,) = [line for line in result.stdout.splitlines() if "all workers have ended well, but" in line]
    assert re.search(
        r"but worker 1 \(w[01], [^,]+, pid \d+\) ended without worker\.finish\(\) or close\(\): its part", last
    )


@pytest.mark.processes
def test_a_worker_that_is_killed_holds_the_others_up_no_longer_than_its_supervisor_takes(zmqps, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, numpy as np, zmqps\n"
        "worker = zmqps.connect()\n"
        "worker.init({'w': np.zeros(4, 'f4')}, optimizer=zmqps.optim.sgd(0.1), mode='sync')\n"
        "worker.push({'w': np.ones(4, 'f4')}, timeout=60)\n"
        "if worker.rank:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "worker.push({'w': np.ones(4, 'f4')}, timeout=60)\n"
        "worker.finish()\n"
        "print('went on alone')\n"
    )
    result = zmqps(*UP, "--workers", "2", "--heartbeat-timeout", "1000", "--", "python", str(script))
    assert result.returncode == exits.WORKERS_FAILED, result.stdout + result.stderr
    assert "went on alone" in result.stdout
    assert re.search(r"worker 1 \(.+\) has ended \(signal SIGKILL\), says its supervisor", result.stdout)


@pytest.mark.processes
def test_pinned_workers_see_one_gpu_each_in_turn(zmqps, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    script = "echo worker $ZMQPS_WORKER_INDEX on $CUDA_VISIBLE_DEVICES"
    result = zmqps(*UP, "--workers", "3", "--pin-workers", "--", "sh", "-c", script)
    assert result.returncode == exits.OK, result.stderr
    said = {entry["message"] for entry in logged(zmqps)}
    assert {"worker 0 on 5", "worker 1 on GPU-7", "worker 2 on 5"} <= said


@for_each("option", [("--pin-workers",), ("--servers-per-gpu", "1")])
def test_without_a_gpu_nothing_is_started_for_one(within, monkeypatch, option) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = within(*UP, *option, "--", "true")
    assert result.returncode != exits.OK
    assert "there is no GPU to" in result.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, exits.INTERRUPTED), (signal.SIGTERM, exits.TERMINATED)], ids=["INT", "TERM"]
)
def test_a_signal_ends_workers_and_nodes_in_order(start, tmp_path, number, code) -> None:
    up = start(*UP, "--workers", "1", "--", "sh", "-c", "sleep 1000 & echo at work; wait")
    up.wait_for("worker-0 .* at work")
    processes = processes_of(up.pid)
    assert len(processes) == 5  # the worker's own child included
    up.popen.send_signal(number)
    assert up.exit_code() == code
    assert "coordinator | " in up.output.partition(f"{number.name}: ending")[2]
    assert_gone(processes, PATIENCE)
    assert not state_path(tmp_path).exists()


STEPS = """
import sys, numpy as np, zmqps
worker = zmqps.connect()
worker.init({"w": np.zeros(8, np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=0.1), mode="sync")
for step in range(47):
    worker.push({"w": np.ones(8, np.float32)})
if "finish" in sys.argv:
    worker.finish()
else:
    print("at work", flush=True)
    worker.barrier("nobody else comes", timeout=1000) if "wait" in sys.argv else worker.close()
"""


#: What a worker does in the end, which waits for the others: where it is the only one, for nobody.
WAITS = 'worker.barrier("nobody else comes", timeout=1000) if "wait" in sys.argv else worker.close()'


@pytest.mark.processes
@pytest.mark.parametrize("how", ["close", "finish"])
def test_what_was_trained_is_saved_when_the_workers_have_ended(zmqps, tmp_path, how) -> None:
    result = zmqps(*UP, "--checkpoint", "ckpt", "--", sys.executable, "-c", STEPS, how)
    assert result.returncode == exits.OK
    made = open_checkpoint(str(tmp_path / "ckpt"))
    assert made.manifest.version == 47
    assert "last checkpoint of version 47, 0.0 MB in " in result.stdout
    assert made.path in result.stdout


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_trained_is_saved_when_a_signal_ends_the_cluster(start, tmp_path, number) -> None:
    up = start(*UP, "--workers", "2", "--checkpoint", "ckpt", "--drain-timeout", "1", "--", "sh", "-c",
               'if [ $ZMQPS_WORKER_INDEX = 0 ]; then exec "$0" -c "$1" wait; else sleep 1000; fi',
               sys.executable, STEPS.replace('"sync"', '"async", workers=1'))  # fmt: skip
    up.wait_for("worker-0 .* at work")
    up.popen.send_signal(number)
    up.exit_code()
    assert "last checkpoint of version " in up.output
    assert open_checkpoint(str(tmp_path / "ckpt")).manifest.version == 47


#: Has a file in the place of the directory before the cluster ends.
FULL = "import shutil; shutil.rmtree('ckpt', ignore_errors=True); open('ckpt', 'w').close()\n"


@pytest.mark.processes
@pytest.mark.parametrize("once", [(), ("--once",)])
def test_that_what_was_trained_could_not_be_saved_is_an_exit_code_of_its_own(zmqps, once) -> None:
    steps = STEPS.replace('if "finish"', f'{FULL}if "finish"')
    result = zmqps(*UP, *once, "--checkpoint", "ckpt", "--", sys.executable, "-c", steps, "finish")
    assert "ends without a last checkpoint" in result.stdout
    assert result.returncode == exits.NOT_SAVED, result.stdout + result.stderr


@pytest.mark.processes
def test_so_it_is_where_a_signal_ends_the_cluster(start) -> None:
    steps = STEPS.replace('if "finish"', f'{FULL}if "finish"').replace(
        WAITS, "import threading; threading.Event().wait()"
    )
    up = start(*UP, "--checkpoint", "ckpt", "--drain-timeout", "1", "--", sys.executable, "-c", steps, "wait")
    up.wait_for("worker-0 .* at work")
    up.popen.send_signal(signal.SIGTERM)
    assert up.exit_code() == exits.NOT_SAVED, up.output


@pytest.mark.processes
def test_so_does_the_down_that_has_asked_for_the_end(start, zmqps) -> None:
    steps = STEPS.replace('if "finish"', f'{FULL}if "finish"').replace(
        WAITS, "import threading; threading.Event().wait()"
    )
    up = start(*UP, "--checkpoint", "ckpt", "--drain-timeout", "1", "--", sys.executable, "-c", steps, "wait")
    up.wait_for("worker-0 .* at work")
    ended = zmqps("down")
    assert (ended.returncode, ended.stderr) == (exits.NOT_SAVED, ""), ended.stdout
    assert "without its last checkpoint" in ended.stdout
    assert up.exit_code() == exits.NOT_SAVED, up.output
    assert zmqps("down").stdout == "no cluster runs here\n"


@pytest.mark.processes
def test_no_last_checkpoint_is_written_where_that_is_said(zmqps, tmp_path) -> None:
    saving = ("--checkpoint", "ckpt", "--no-checkpoint-at-end")
    result = zmqps(*UP, *saving, "--", sys.executable, "-c", STEPS, "finish")
    assert result.returncode == exits.OK
    assert not list((tmp_path / "ckpt").iterdir())


@pytest.mark.processes
def test_a_supervisor_that_is_killed_leaves_no_orphans(start, zmqps, tmp_path) -> None:
    up = start(*UP, "--workers", "1", "--", "sh", "-c", "echo at work; exec sleep 1000")
    up.wait_for("worker-0 .* at work")
    processes = processes_of(up.pid)
    up.popen.kill()
    assert_gone(processes, PATIENCE)
    state = read_state(tmp_path)
    assert state is not None
    assert not state.running
    result = zmqps("down")
    assert (result.returncode, "had been killed" in result.stdout) == (exits.OK, True)
    assert not state_path(tmp_path).exists()


@pytest.mark.processes
@pytest.mark.parametrize("mode", [(), ("--detach",)], ids=["attached", "detached"])
def test_a_busy_port_ends_the_start_and_leaves_nothing(zmqps, tmp_path, mode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = zmqps("up", "--address", f"tcp://127.0.0.1:{port}", *mode)
    assert result.returncode == exits.ADDRESS_IN_USE
    assert result.stderr.startswith(f"zmqps: cannot bind tcp://127.0.0.1:{port}: port {port} is in use by ")
    assert result.stderr.count("\n") == 1
    assert not state_path(tmp_path).exists()


def test_a_start_that_takes_too_long_says_what_is_missing(zmqps, tmp_path) -> None:
    result = zmqps(*UP, "--timeout", "0.001")
    assert result.returncode == exits.COORDINATOR_LOST
    assert "waiting for the coordinator to start" in result.stderr
    assert not state_path(tmp_path).exists()


def test_a_command_that_does_not_exist_is_refused_before_anything_starts(within, tmp_path) -> None:
    result = within(*UP, "--", "no-such-command")
    assert result.returncode == exits.USAGE
    assert "no-such-command" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_down_kills_what_does_not_end(start, zmqps) -> None:
    up = start(*UP, "--workers", "1", "--", "sh", "-c", "trap '' TERM INT; echo at work; while :; do sleep 1000; done")
    up.wait_for("worker-0 .* at work")
    processes = processes_of(up.pid)
    result = zmqps("down", "--timeout", "0.1")
    assert result.returncode == exits.OK
    assert "killed the cluster" in result.stdout
    assert_gone(processes, PATIENCE)


def test_a_status_nobody_answers_says_so(within) -> None:
    result = within("status", "--coordinator", "tcp://127.0.0.1:1", "--timeout", "0.2")
    assert result.returncode == exits.COORDINATOR_LOST
    assert result.stderr == (
        "zmqps: status timed out after 0.2 s, waiting for the coordinator at tcp://127.0.0.1:1 to answer [Z004]\n"
    )


def test_a_claim_is_exclusive_and_ends_with_its_process(tmp_path) -> None:
    with Claim(tmp_path) as claim:
        claim.write(State(pid=1234, name="cluster", address="tcp://127.0.0.1:5", logs="logs", started="now"))
        state = read_state(tmp_path)
        assert state is not None
        assert state.running
        with pytest.raises(ConfigurationError, match="running here already at tcp://"), Claim(tmp_path):
            pass
    assert read_state(tmp_path) is None
    with Claim(tmp_path):
        pass


def test_a_cluster_that_was_not_started_here_is_ended_at_its_coordinator(capsys: pytest.CaptureFixture[str]) -> None:
    with InProcessCluster() as cluster, zmqps_package.connect(cluster.address) as worker:
        assert run(["down", "--coordinator", cluster.address]) == exits.OK
        with pytest.raises(ShutdownError, match="ended by zmqps down"):
            worker.status()
    assert capsys.readouterr().out == f"ended the cluster at {cluster.address}\n"
    assert run(["down", "--coordinator", cluster.address, "--timeout", "0.2"]) == exits.COORDINATOR_LOST


A, B = "tcp://10.0.0.7:5570", "tcp://10.0.0.8:0"


@for_each(
    "told, runs",
    [
        ("up SERVERS=3 PORT=7", "up --detach --servers 3 --address tcp://127.0.0.1:7"),
        (f"up ADDRESS={A} ARGS=--insecure", f"up --detach --servers 2 --address {A} --insecure"),
        ("down", "down"),
        (f"down COORDINATOR={A} ARGS=--job-secret=x", f"down --coordinator '{A}' --job-secret=x"),
        ("status", "status"),
        (f"status ADDRESS={A}", f"status --coordinator '{A}'"),
        ("status PORT=7 ARGS=--json", "status --coordinator 'tcp://127.0.0.1:7' --json"),
        ("logs ARGS=-f", "logs -f"),
        (
            f"coordinator ADDRESS={A} ARGS=--insecure",
            f"coordinator --address {A} --servers 2 --journal .zmqps/coordinator --insecure",
        ),
        (f"server COORDINATOR={A} ADDRESS={B} ARGS=--insecure", f"server --coordinator {A} --address '{B}' --insecure"),
        (f"server ADDRESS={A}", f"server --coordinator {A}"),
        (f"worker SCRIPT=train.py ARGS=--lr=1 COORDINATOR={A}", f"ZMQPS_COORDINATOR={A} python3 train.py --lr=1"),
    ],
)
def test_every_target_of_a_cluster_takes_an_address_a_coordinator_and_more(told: str, runs: str) -> None:
    make = ["make", "--no-print-directory", "--dry-run", "VENV=", *told.split()]
    result = subprocess.run(make, capture_output=True, text=True, check=True)
    last = result.stdout.splitlines()[-1]
    assert " ".join(last.removeprefix("python3 -m zmqps ").split()) == runs


@pytest.mark.processes
def test_the_end_of_a_cluster_is_not_awaited_long_where_nobody_listens(zmqps) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ended = zmqps("down", "--coordinator", f"tcp://127.0.0.1:{port}")
    assert ended.returncode == exits.COORDINATOR_LOST
    assert "timed out after 5.0 s" in ended.stderr
    assert "no process listens at that port" in ended.stderr
