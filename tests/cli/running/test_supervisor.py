"""Workers and servers that `zmqps up` starts again when they die, and workers that go in order when they are asked."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import hosts
from tests.cli.conftest import Running
from tests.pace import stretch
from tests.ports import free_port
from zmqps.core.protocol import exits

UP = ("up", "--address", "tcp://127.0.0.1:0", "--kernels", "numpy")
#: Nobody is missed while a Python starts.
PATIENT = (*UP, "--heartbeat-timeout", "60")
DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits.py"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]  # half a dozen Pythons, on a busy machine

#: Says of each example how often it was used: minus the value of its element.
COUNT = """
import os, signal, numpy as np, zmqps
first_life = os.environ["ZMQPS_WORKER_RESTART"] == "0"
with zmqps.connect(os.environ["ZMQPS_COORDINATOR"]) as worker:
    worker.init({"used": np.zeros(300, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
    print("life", os.environ["ZMQPS_WORKER_RESTART"], "has rank", worker.rank)
    if first_life:
        worker.barrier("all are here", timeout=60)
    for number, examples in enumerate(worker.ranges(300, 10, passes=2)):
        if first_life and number == 3 and os.environ["ZMQPS_WORKER_INDEX"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        used = np.zeros(300, np.float32)
        used[examples.indices] = 1
        worker.push({"used": used})
    print("each example was used", *np.unique(-worker.pull()["used"]), "times")
    worker.finish()
"""


def test_a_worker_that_is_killed_comes_back_and_each_example_is_used_once_a_pass(start) -> None:
    up = start(*PATIENT, "--workers", "3", "--restart-workers", "2", "--", sys.executable, "-c", COUNT)
    assert up.exit_code() == exits.OK, up.output
    said = up.output
    assert re.search(r"worker-1 failed with signal SIGKILL(.|\n)*it starts again in 0\.5 s: restart 1 of 2", said)
    ranks = re.findall(r"worker-1 .* life (\d) has rank (\d)", said)
    assert [life for life, _ in ranks] == ["0", "1"]
    assert ranks[0][1] == ranks[1][1]
    rank = ranks[0][1]
    assert re.search(
        rf"worker {rank} \(worker-1, .*\) had died and was started again \(restart 1\): worker {rank}", said
    )
    assert re.findall(r"each example was used (.*) times", said) == ["2.0"] * 3
    assert "all 3 workers have ended well; worker-1 was restarted 1 time" in said


#: The example, and the worker of number 1 is killed as it is about to push for the 20th time.
KILLED = f"""
import itertools, os, signal, sys
sys.path.insert(0, {str(DIGITS.parent)!r})
import digits, zmqps
from argparse import Namespace
worker = zmqps.connect(os.environ["ZMQPS_COORDINATOR"], timeout=60)
push, pushes = worker.push, itertools.count(1)
def dies(*arguments, **options):
    if os.environ["ZMQPS_WORKER_INDEX"] + os.environ["ZMQPS_WORKER_RESTART"] == "10" and next(pushes) == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    push(*arguments, **options)
worker.push = dies
digits.train(worker, Namespace(mode=sys.argv[1], staleness=3, share=3 if sys.argv[1] == "sync" else 1, codec="raw",
                               passes=15, batch=16, report=os.devnull))
"""


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_digits_come_as_far_although_a_worker_is_killed_in_the_middle(start, mode: str) -> None:
    up = start(*PATIENT, "--workers", "3", "--restart-workers", "1", "--", sys.executable, "-c", KILLED, mode)
    assert up.exit_code() == exits.OK, up.output
    back = r"worker (\d) \(worker-1, .*\) had died and was started again \(restart 1\): worker (\d)"
    ranks = re.search(back, up.output)
    assert ranks is not None, up.output
    assert ranks[1] == ranks[2]
    accuracies = [float(text) for text in re.findall(r"test accuracy (0\.\d+)", up.output)]
    assert len(accuracies) == 3
    assert max(accuracies) >= 0.95
    assert "all 3 workers have ended well; worker-1 was restarted 1 time" in up.output


STEPS = """
import os, signal, sys, numpy as np, zmqps
zmqps.drain_on()
index, asked = os.environ["ZMQPS_WORKER_INDEX"], sys.argv[1:] == ["1"]
with zmqps.connect(os.environ["ZMQPS_COORDINATOR"], name="w" + index) as worker:
    worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="sync")
    while not asked or (version := worker.pull().version) < 40:
        if worker.draining:
            worker.drain()
        if asked and index == "1" and version == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        worker.push({"w": np.ones(4, np.float32)})
    worker.finish()
"""


def test_a_worker_that_is_asked_to_go_is_no_failure_and_the_others_go_on(start) -> None:
    up = start(*UP, "--workers", "2", "--restart-workers", "1", "--", sys.executable, "-c", STEPS, "1")
    assert up.exit_code() == exits.OK, up.output
    assert re.search(r"worker \d \(w1, .*\) drained", up.output)
    assert "worker-1 has drained" in up.output
    assert "1 of 2 workers have ended well; worker-1 drained" in up.output


def test_sigterm_lets_workers_complete_what_they_do(start) -> None:
    up = start(*UP, "--workers", "2", "--drain-timeout", "60", "--", sys.executable, "-c", STEPS)
    for said in ("cluster at", r"\(w\d, .*joined job", r"\(w\d(.|\n)*\(w\d, .*joined job", "server-0 .* shard 0 of 1"):
        up.wait_for(said)  # each in its time: two Pythons start
    up.popen.send_signal(signal.SIGTERM)
    assert up.exit_code() == exits.TERMINATED
    assert len(re.findall(r"worker \d \(w\d, .*\) drained", up.output)) == 2, up.output


# --- servers ------------------------------------------------------------------------------------

SERVERS = (
    "--kernels", "numpy", "--timeout", "90", "--servers", "2", "--slice-size", "64KiB",
    "--heartbeat-interval", "0.3", "--heartbeat-timeout", str(stretch(3)),
)  # fmt: skip
#: Kills a server after its 20th step, ten steps after a checkpoint; knows nothing of what follows.
LOSES = """
import os, signal, numpy as np, zmqps
with zmqps.connect(os.environ["ZMQPS_COORDINATOR"], timeout=60) as worker:
    worker.on_rollback(lambda back: print("back at", back.version, "lost", back.lost, "steps"))
    zeros = {"w": np.zeros(20_000, np.float32), "b": np.zeros(7, np.float32)}  # a slice for each server
    worker.init(zeros, optimizer=zmqps.optim.sgd(1.0), mode="sync")
    params, steps = worker.pull(), 0
    while params.version < 30:
        params = worker.push_pull({name: np.full_like(value, -1) for name, value in zeros.items()})
        steps += 1
        if steps == 10:
            worker.checkpoint(timeout=60)
        if steps == 20:
            (pid,) = (m["pid"] for m in worker.status()["members"] if m["name"].startswith("server-1"))
            os.kill(pid, signal.SIGKILL)
    print("values", *np.unique(np.concatenate(list(params.values()))))
    worker.finish()
"""


def with_servers(tmp_path: Path, *more: str) -> tuple[str, ...]:
    return *SERVERS, *more, "--checkpoint", str(tmp_path / "saved"), "--", sys.executable, "-c", LOSES


@pytest.mark.parametrize("how", ["up", "launch", "run"])
def test_a_server_that_is_killed_starts_again_and_the_script_just_goes_on(
    how: str, start: Callable[..., Running], tmp_path: Path
) -> None:
    if how == "up":
        cluster = start("up", "--address", "tcp://127.0.0.1:0", *with_servers(tmp_path, "--workers", "1"))
    elif how == "launch":
        cluster = start("launch", "--ssh", hosts.stand_in(tmp_path), "-H", "127.0.0.11:1", *with_servers(tmp_path))
    else:
        where = ("--address", f"127.0.0.1:{free_port()}", "--size", "1", "--rank", "0")
        cluster = start("run", *where, *with_servers(tmp_path))
    code = cluster.exit_code()
    said = cluster.output
    assert code == exits.OK, said
    assert re.search(r"server-1\S* failed with signal SIGKILL and is started again \(1 of 3\): lost shards", said)
    assert "back at 10 lost 10 steps" in said or "back at 10 lost 11 steps" in said, said
    assert "values 30.0" in said


def test_a_server_that_does_not_start_again_is_replaced_by_the_other_one(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    told = with_servers(tmp_path, "--workers", "1", "--restart-servers", "0")
    cluster = start("up", "--address", "tcp://127.0.0.1:0", *told)
    code = cluster.exit_code()
    assert code == exits.OK, cluster.output
    assert "it does not start again" in cluster.output
    assert "values 30.0" in cluster.output
