"""Workers of a host that combine their gradients, as real processes: the same values, fewer bytes, and no one hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.combine.trainer import SIZE, gradient
from tests.inprocess import InProcessCluster
from tests.pace import allow, stretch
from zmqps.errors import ConfigurationError

TRAINER = Path(__file__).with_name("trainer.py")
WORKERS = 4


class Trainer:
    """A process of `trainer.py`."""

    def __init__(
        self, address: str, name: str, *, combine: str = "host", mode: str = "sync", steps: int = 6, pause: int = -1
    ) -> None:
        command = [sys.executable, str(TRAINER), address, name, combine, mode, str(steps), str(pause)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rank = -1

    def line(self) -> list[str]:
        """Return the next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it has ended with {self.process.wait()}"
        return line.split(maxsplit=2)

    def joined(self) -> None:
        self.rank = int(self.line()[1])

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def after(self, step: int) -> None:
        """Wait until a step is done."""
        while (said := self.line())[:2] != ["step", str(step)]:
            assert said[0] == "step", said

    def rest(self) -> tuple[list[list[str]], dict[str, Any]]:
        """Return the errors until the end, and what came out."""
        errors = []
        while (said := self.line())[0] != "done":
            errors += [said] if said[0] == "error" else []
        assert self.process.wait(allow(30)) == 0
        return errors, json.loads(" ".join(said[1:]))


@contextlib.contextmanager
def trainers(number: int = WORKERS, **options: Any) -> Iterator[list[Trainer]]:
    """Start workers of a job on two servers, all of which have joined; end them."""
    heartbeats = {"heartbeat_interval": 0.2, "heartbeat_timeout": stretch(2.0)}
    with InProcessCluster(servers=2, workers=number, **heartbeats) as cluster:
        started = [Trainer(cluster.address, f"worker-{index}", **options) for index in range(number)]
        try:
            for trainer in started:
                trainer.joined()
            yield sorted(started, key=lambda trainer: trainer.rank)
        finally:
            for trainer in started:
                trainer.process.kill()
                trainer.process.communicate()


def expected(ranks: list[list[int]]) -> np.ndarray:
    """Return the values after steps that these ranks contributed to."""
    values = np.zeros(SIZE, np.float64)
    for step, contributors in enumerate(ranks):
        values -= 0.5 * np.mean([gradient(rank, step) for rank in contributors], axis=0)
    return values


@pytest.mark.processes
def test_a_synchronous_run_gives_the_values_that_it_gives_without() -> None:
    with trainers() as combined:
        for trainer in combined:
            trainer.go()
        results = [trainer.rest() for trainer in combined]
    assert not any(errors for errors, _ in results)
    for _, found in results:
        assert found["version"] == 6
        np.testing.assert_array_equal(found["w"], expected([[0, 1, 2, 3]] * 6))
    # the first step may be pushed by each alone, before they have found together
    assert sum(found["pushes"] for _, found in results) <= 6 + WORKERS


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_workers_of_a_host_take_their_steps_together_in_the_other_modes(mode: str) -> None:
    with trainers(mode=mode) as combined:
        for trainer in combined:
            trainer.go()
        results = [trainer.rest() for trainer in combined]
    assert not any(errors for errors, _ in results)
    assert sum(found["pushes"] for _, found in results) < 6 * WORKERS
    newest = max((found for _, found in results), key=lambda found: found["version"])
    assert newest["version"] >= 6
    assert np.isfinite(newest["w"]).all()


def leader(pids: list[int]) -> int:
    """Return which of some processes leads: the one that listens at a socket of the directory."""
    from zmqps.combine.meeting import directory

    listening = {
        fields[6]
        for fields in (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
        if len(fields) == 8
        and fields[7].startswith(f"{directory()}/")
        and fields[5] == "01"
        and fields[3] != "00000000"
    }
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).removeprefix("socket:[").rstrip("]") in listening:
                    return pid
    raise AssertionError("nobody listens")


@pytest.mark.processes
@pytest.mark.parametrize("who", ["member", "leader"])
def test_nobody_hangs_when_a_worker_of_the_host_is_killed(who: str) -> None:
    with trainers(steps=8) as combined:
        pids = [trainer.process.pid for trainer in combined]
        leading = leader(pids)
        victim = next(t for t in combined if (t.process.pid == leading) == (who == "leader"))
        others = [trainer for trainer in combined if trainer is not victim]
        for trainer in combined:
            trainer.go()
        victim.after(1)
        victim.process.send_signal(signal.SIGKILL)
        results = [trainer.rest() for trainer in others]
    for errors, found in results:
        assert all(error[1] == "HostLeaderLostError" for error in errors)
        assert len(errors) <= (1 if who == "leader" else 0)
        assert found["version"] >= 7
    assert len({tuple(found["w"]) for _, found in results if found["version"] == 8}) <= 1


@pytest.mark.processes
@pytest.mark.parametrize("who", ["member", "leader"])
def test_a_worker_of_the_host_that_is_stopped_is_dropped_after_the_heartbeat_timeout_and_told(who: str) -> None:
    with trainers(steps=6, pause=1) as combined:
        leading = leader([trainer.process.pid for trainer in combined])
        victim = next(t for t in combined if (t.process.pid == leading) == (who == "leader"))
        others = [trainer for trainer in combined if trainer is not victim]
        for trainer in combined:
            trainer.go()
        victim.after(1)
        victim.process.send_signal(signal.SIGSTOP)
        for trainer in combined:
            trainer.go()  # on from the pause; the victim will read it
        results = [trainer.rest() for trainer in others]
        victim.process.send_signal(signal.SIGCONT)
        while (said := victim.line())[0] != "error":
            assert said[0] == "step"
    for errors, _ in results:
        assert [error[1] for error in errors] in ([], ["HostLeaderLostError"] * (who == "leader"))
    assert said[1] in ("EvictedError", "JobEndedError", "JobError", "ClosedError"), said


def test_what_counts_gradients_of_single_workers_is_refused() -> None:
    start = {"w": np.zeros(3, np.float32)}
    with (
        InProcessCluster(servers=1) as cluster,
        zmqps.connect(cluster.address, combine="host", timeout=allow(20)) as worker,
    ):
        for options in ({"steps": zmqps.Steps(aggregate=2)}, {"steps": zmqps.Steps(deterministic=True), "workers": 1}):
            with pytest.raises(ConfigurationError, match="combine='host'"):
                worker.init(start, optimizer=zmqps.optim.sgd(1.0), mode="sync", **options)
        with pytest.raises(ConfigurationError, match="observer"):
            zmqps.connect(cluster.address, combine="host", observer=True, timeout=allow(20))
    with pytest.raises(ConfigurationError, match="combine must be"):
        zmqps.connect(cluster.address, combine="rack")


@pytest.mark.processes
def test_who_does_not_combine_imports_nothing_of_it() -> None:
    program = (
        "import sys, zmqps\n"
        "with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:\n"
        "    worker.status()\n"
        "assert not [name for name in sys.modules if 'zmqps.combine' in name]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=allow(60))
