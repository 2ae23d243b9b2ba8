"""``zmqps up`` and all that it has started, stopped at once and continued in any order: it goes on, nothing is lost."""

from __future__ import annotations

import random
import re
import signal
import sys
import threading

import psutil
import pytest

from tests.pace import stretch
from zmqps.core.protocol import exits

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

#: Seconds until a node counts as lost, on an idle machine; how busy this one is, each test looks at when it begins.
TIMEOUT_S = 1.5
UP = (
    "up", "--address", "tcp://127.0.0.1:0", "--kernels", "numpy", "--servers", "2", "--workers", "2", "--replicas", "1",
)  # fmt: skip
STEPS = 200
#: Of each worker, a whole number to a parameter that all share; minus the value is what has come of it. No wait of its
#: own is as long as the standstill.
TRAIN = """
import sys, time, numpy as np, zmqps
timeout, mode, steps = 0.8 * float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with zmqps.connect(timeout=60.0) as worker:
    worker.init({"w": np.zeros(3000, np.float32)}, optimizer=zmqps.optim.sgd(1.0),
                mode=mode, workers=2, timeout=60.0)
    worker.barrier("all are here")
    for step in range(steps):
        worker.push({"w": np.full(3000, 2, np.float32)}, timeout=timeout)
        worker.pull(timeout=timeout)
        print("step", step, flush=True)
        time.sleep(0.002)
    worker.barrier("all have pushed")
    print("all are", *np.unique(worker.pull()["w"]), flush=True)
    worker.finish()
"""


@pytest.mark.parametrize(("combine", "mode"), [("none", "async"), ("none", "sync"), ("host", "sync")])
def test_a_whole_cluster_that_stands_still_goes_on(start, combine: str, mode: str) -> None:
    chooser = random.Random(f"{mode} {combine}")
    timeout = stretch(TIMEOUT_S)
    pace = f"--heartbeat-interval={timeout / 8}", f"--heartbeat-timeout={timeout}"
    script = sys.executable, "-c", TRAIN, str(timeout), mode, str(STEPS)
    up = start(*UP, *pace, "--", "env", f"ZMQPS_COMBINE={combine}", *script)
    up.wait_for(r"worker-0 .*step 20\b")
    up.wait_for(r"worker-1 .*step 20\b")
    for times in (0.7, 2.5):
        parent = psutil.Process(up.pid)
        tree = [parent, *parent.children(recursive=True)]
        for process in tree:
            process.send_signal(signal.SIGSTOP)
        threading.Event().wait(times * timeout)
        for process in chooser.sample(tree, len(tree)):
            process.send_signal(signal.SIGCONT)
        seen = max(map(int, re.findall(r"step (\d+)", up.output)))
        up.wait_for(rf"step {seen + 40}\b")
    assert up.exit_code() == exits.OK, up.output
    expected = -2.0 * STEPS * (1 if mode == "sync" else 2)
    assert re.findall(r"all are (-.*)", up.output) == [str(expected)] * 2
    assert "lost" not in up.output
