"""Workers that die, stop, come back, come late and leave early, in every phase of a synchronous step.

Nobody hangs, no gradient counts twice, and the mean is taken over those who contributed. Two workers survive it all;
each test adds a third one in a process of its own, which stops where it is told and is then killed. Every worker pushes
another power of ten, so a step's mean says whose gradients are in it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, TextIO

import numpy as np
import pytest

import zmqps
from tests.pace import stretch
from tests.team import PATIENCE, Team
from zmqps.client.requests import Params
from zmqps.errors import ClosedError
from zmqps.nodes.inquiry import inquire, run_blocking

pytestmark = pytest.mark.processes

#: Seconds of silence after which a worker is lost; a busy machine makes nobody silent for so long.
TIMEOUT = 1.5
SLICE_NBYTES = 4096
#: Slices of a server.
SLICES = 3
#: Elements of each of the two parameters, one a server.
SIZE = SLICES * SLICE_NBYTES // 4
#: What the two survivors push, and the third worker.
FIRST, SECOND, THIRD = 1.0, 10.0, 100.0


def gradients(value: float) -> dict[str, np.ndarray]:
    return {name: np.full(SIZE, value, np.float32) for name in "wv"}


class Arena:
    """A cluster and the two workers that survive everything."""

    def __init__(self, cluster: zmqps.LocalCluster, team: Team, nursery: Nursery) -> None:
        self.cluster = cluster
        self.team = team
        self.nursery = nursery
        self._pool = ThreadPoolExecutor(1)

    def begin_step(self) -> Future[list[Params]]:
        """Let the survivors push and pull; the result comes when the step is over."""
        return self._pool.submit(self.team.step, lambda rank: gradients((FIRST, SECOND)[rank]))

    def finish_step(self, step: Future[list[Params]], before: Params, *contributions: float) -> Params:
        """Wait for the end of a step; it is the next one, of these contributions."""
        first, second = step.result()
        assert first.version == second.version == before.version + 1
        for name in before:
            assert np.array_equal(first[name], second[name])
            np.testing.assert_allclose(before[name] - first[name], np.mean(contributions), rtol=1e-3)
        return first

    def pull(self) -> Params:
        return self.team.workers[0].pull(timeout=PATIENCE)

    def wait_until(self, good: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        return run_blocking(inquire(self.cluster.address, timeout=PATIENCE, until=good))

    def wait_for_arrivals(self, number: int) -> None:
        self.wait_until(lambda status: status["jobs"]["default"]["steps"]["arrived"] == number)

    def wait_for_counter(self, name: str, value: int) -> Mapping[str, Any]:
        """Wait until the servers' heartbeats have told of so many, all together; return that status."""
        return self.wait_until(lambda status: counted(status, name) == value)

    def wait_for_loss(self, pid: int) -> None:
        self.wait_until(lambda status: any(gone["pid"] == pid and gone["how"] == "lost" for gone in status["gone"]))

    def close(self) -> None:
        self._pool.shutdown()


def counted(status: Mapping[str, Any], name: str) -> int:
    return sum(member["counters"].get(name, 0) for member in status["members"] if member["role"] == "server")


class Nursery:
    """Where victims come from: a process that forks them."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.victim", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def fork(self, *arguments: str) -> tuple[int, TextIO, TextIO]:
        """Return a new victim: its process id, what it reads and what it writes."""
        (their_in, our_in), (our_out, their_out) = os.pipe(), os.pipe()
        socket.send_fds(self._control, [json.dumps(arguments).encode()], [their_in, their_out])
        os.close(their_in)
        os.close(their_out)
        self._control.settimeout(PATIENCE)
        return int(self._control.recv(100)), os.fdopen(our_in, "w"), os.fdopen(our_out)

    def close(self) -> None:
        self._control.close()
        assert self._process.wait(PATIENCE) == 0


class Victim:
    """The third worker, in a process of its own (`tests.victim`)."""

    def __init__(self, arena: Arena, name: str = "victim") -> None:
        self.pid, self._in, self._out = arena.nursery.fork(arena.cluster.address, name, str(SIZE))
        self.rank = self.hear()["rank"]

    def tell(self, *command: Any) -> None:
        print(json.dumps(command), file=self._in, flush=True)

    def hear(self) -> dict[str, Any]:
        return dict(json.loads(self._read()))

    def _read(self) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            assert selector.select(PATIENCE), "the victim says nothing"
        return self._out.readline()

    def ask(self, *command: Any) -> dict[str, Any]:
        self.tell(*command)
        return self.hear()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        """Let it leave, so that nobody waits for it, if it can; kill it otherwise. Wait for its end."""
        with self._out:
            try:
                with self._in:
                    self.tell("end")
                self._read()  # nothing: it has ended
            except BrokenPipeError:
                pass  # it was killed, and has ended
            except AssertionError:
                self.signal(signal.SIGKILL)
                raise


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    params = gradients(0.0)
    options = {"optimizer": zmqps.optim.sgd(1.0), "mode": "sync"}
    limits = zmqps.Limits(heartbeat_interval=TIMEOUT / 20, heartbeat_timeout=stretch(TIMEOUT), slice_size=SLICE_NBYTES)
    with (
        closing(Nursery()) as nursery,  # first: it imports while the cluster starts
        # no number of workers is expected: where one is, a third worker would be a spare
        zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy"), limits=limits) as cluster,
        Team(cluster.address, 2, params, **options) as team,
        closing(Arena(cluster, team, nursery)) as arena,
    ):
        yield arena


@pytest.fixture
def victim(arena: Arena) -> Iterator[Victim]:
    """The third worker, which has done a step with the others."""
    victim = Victim(arena)
    try:
        before = arena.pull()
        step = arena.begin_step()
        victim.ask("push", THIRD)
        after = arena.finish_step(step, before, FIRST, SECOND, THIRD)
        assert victim.ask("pull", 0)["version"] == after.version
        yield victim
    finally:
        victim.close()


def test_killed_before_its_push_a_worker_counts_no_more(arena: Arena, victim: Victim) -> None:
    before = arena.pull()
    step = arena.begin_step()
    arena.wait_for_arrivals(2)
    victim.signal(signal.SIGKILL)
    arena.finish_step(step, before, FIRST, SECOND)
    arena.wait_for_loss(victim.pid)


@pytest.mark.parametrize(("point", "sent"), [("between slices", 1), ("between shards", SLICES)])
def test_killed_in_the_middle_of_its_push_a_worker_counts_in_no_slice(
    point: str, sent: int, arena: Arena, victim: Victim
) -> None:
    before = arena.pull()
    pushes = counted(arena.wait_for_counter("version", 2 * before.version), "pushes")
    victim.ask("stop at", point)
    assert victim.ask("push", THIRD) == {"at": point, "sent": sent}
    step = arena.begin_step()
    arena.wait_for_counter(
        "pushes", pushes + sent + 2 * 2 * SLICES
    )  # the servers have what it sent, and the survivors'
    victim.signal(signal.SIGKILL)
    after = arena.finish_step(step, before, FIRST, SECOND)
    arena.finish_step(arena.begin_step(), after, FIRST, SECOND)


def test_killed_after_arriving_a_worker_counts_once(arena: Arena, victim: Victim) -> None:
    before = arena.pull()
    victim.ask("push", THIRD)
    arena.wait_for_arrivals(1)
    victim.signal(signal.SIGKILL)
    arena.wait_for_loss(victim.pid)
    after = arena.finish_step(arena.begin_step(), before, FIRST, SECOND, THIRD)
    arena.finish_step(arena.begin_step(), after, FIRST, SECOND)


def test_killed_while_parked_in_a_pull_a_worker_leaves_nothing_behind(arena: Arena, victim: Victim) -> None:
    before = arena.pull()
    victim.tell("pull", before.version + 5)
    arena.wait_for_counter("parked", 2 * SLICES)
    victim.signal(signal.SIGKILL)
    arena.finish_step(arena.begin_step(), before, FIRST, SECOND)
    arena.wait_for_counter("parked", 0)


def test_stopped_and_continued_a_worker_is_told_that_it_was_evicted_and_rejoins(arena: Arena, victim: Victim) -> None:
    before = arena.pull()
    victim.ask("stop at", "between slices")
    victim.ask("push", THIRD)
    step = arena.begin_step()
    victim.signal(signal.SIGSTOP)
    after = arena.finish_step(step, before, FIRST, SECOND)
    victim.signal(signal.SIGCONT)
    victim.tell("release")  # and it sends what it has left of a gradient of a step that is over
    told = victim.hear()
    assert told["error"] == "EvictedError", told
    assert victim.ask("pull", 0)["error"] == "EvictedError"
    assert victim.ask("rejoin")["rank"] == victim.rank
    rejoined = victim.ask("pull", 0)
    assert (rejoined["version"], rejoined["value"]) == (after.version, pytest.approx(after["w"][0]))
    victim.ask("push", THIRD)
    arena.finish_step(arena.begin_step(), after, FIRST, SECOND, THIRD)


def test_restarted_under_its_name_a_worker_is_another_one(arena: Arena, victim: Victim) -> None:
    before = arena.pull()
    victim.ask("push", THIRD)
    arena.wait_for_arrivals(1)
    victim.signal(signal.SIGKILL)
    again = Victim(arena)  # usually before anybody has noticed
    try:
        step = arena.begin_step()
        again.ask("push", 10 * THIRD)
        # what its last life had brought completely counts, and what this one brings as well
        arena.finish_step(step, before, FIRST, SECOND, THIRD, 10 * THIRD)
        arena.wait_for_loss(victim.pid)
        names = [member["name"] for member in arena.cluster.status()["members"]]
        assert names.count("victim") == 1
    finally:
        again.close()


def test_late_a_worker_begins_at_the_current_step_and_early_it_is_not_waited_for(arena: Arena) -> None:
    before = arena.pull()
    with zmqps.connect(arena.cluster.address, timeout=PATIENCE) as late:
        params = late.pull(timeout=PATIENCE)  # takes the job as it is
        assert (params.version, params["w"][0]) == (before.version, before["w"][0])
        late.push(gradients(THIRD), timeout=PATIENCE)
        after = arena.finish_step(arena.begin_step(), before, FIRST, SECOND, THIRD)
        step = arena.begin_step()
        arena.wait_for_arrivals(2)
        late.finish(timeout=PATIENCE)  # it has no more data, and the others are waiting for it
        after = arena.finish_step(step, after, FIRST, SECOND)
    arena.finish_step(arena.begin_step(), after, FIRST, SECOND)


def test_a_worker_that_finishes_after_its_last_push_counts_once(arena: Arena) -> None:
    before = arena.pull()
    with zmqps.connect(arena.cluster.address, timeout=PATIENCE) as last:
        last.pull(timeout=PATIENCE)
        last.push(gradients(THIRD), timeout=PATIENCE)
        last.finish(timeout=PATIENCE)
    after = arena.finish_step(arena.begin_step(), before, FIRST, SECOND, THIRD)
    arena.finish_step(arena.begin_step(), after, FIRST, SECOND)


def test_who_is_still_a_member_may_rejoin_and_who_has_closed_may_not(arena: Arena) -> None:
    before = arena.pull()
    with zmqps.connect(arena.cluster.address, timeout=PATIENCE, name="restless") as worker:
        worker.pull(timeout=PATIENCE)
        worker.rejoin(timeout=PATIENCE)  # its old life says goodbye: nobody waits for that
        assert [m["name"] for m in arena.cluster.status()["members"]].count("restless") == 1
        worker.push(gradients(THIRD), timeout=PATIENCE)
        arena.finish_step(arena.begin_step(), before, FIRST, SECOND, THIRD)
    with pytest.raises(ClosedError, match="connect again"):
        worker.rejoin()
