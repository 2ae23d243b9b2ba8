"""One cluster for hundreds of jobs, thousands of connections and checkpoints: what its processes hold does not grow."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import zmqps
from tests.attack.raw import NULL
from tests.durable.nodes import PATIENCE
from tests.flat.bounds import bound_of
from tests.flat.walker import SOCKET, ask, held
from tests.leaks import SHARED_MEMORY
from tests.pace import stretch
from zmqps import keys as keys_of
from zmqps.keys import Keys
from zmqps.launch import cluster as launch
from zmqps.launch.config import ClusterConfig
from zmqps.launch.processes import Process, node_environment
from zmqps.nodes.inquiry import inquire, run_blocking, save_job
from zmqps.settings.node import NodeSettings
from zmqps.settings.saving import Saving
from zmqps.settings.server import Servers

ROOT = Path(__file__).resolve().parents[2]
SIZE = 4096
#: Jobs that are trained at a time, each by a thread of this process.
AT_A_TIME = 3
#: Of a round: jobs, members that leave in order, that are killed, strangers without a key, and checkpoints of the job
#: that is there all the time, beside the last one of each other job.
JOBS, CLEAN, KILLED, STRANGERS, CHECKPOINTS = 20, 32, 32, 16, 20
#: Memory may grow by so much from the middle to the end, what a moment happens to need, …
SPARE_KB = 2 << 10
#: … and by so much for each thing more in tables that fill, those of `tests.flat.bounds`.
THING_NBYTES = 512
#: By so much more than after the first fifth: tables that fill, all of `tests.flat.bounds` together.
TABLES_KB = 8 << 10
#: So many more descriptors or threads than after the first fifth: of a connection that is about to end.
SPARE_NUM = 4
#: So many things more may be in one kind of container, or that many times as many: what a moment happens to need.
SPARE_THINGS, SPARE_SHARE = 24, 1.1
#: A journal takes what is kept, and 1,000 pages of 4 KiB that SQLite writes ahead; checkpoints the ledgers of the last
#: 4,096 pushes (`PUSH_WINDOW`), about 70 bytes a push in all that are kept.
FILES_KB = {"journal, kB": 6 << 10, "checkpoints, kB": 512}


@dataclass(frozen=True, slots=True)
class Held:
    """What there is at some moment, by process, and on disks."""

    jobs: int
    processes: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, int]


@dataclass(slots=True)
class Flat:
    """What became of it."""

    seen: list[Held] = field(default_factory=list)
    jobs: int = 0
    connections: int = 0
    checkpoints: int = 0
    grown: list[str] = field(default_factory=list)


class Cluster:
    """A cluster whose nodes answer for what they hold, each at a socket of its own.

    Parameters
    ----------
    directory
        Where everything is.
    servers
        How many.
    keyed
        Whether the nodes have keys.
    """

    def __init__(self, directory: Path, servers: int, *, keyed: bool) -> None:
        self.directory, self.temporary = directory, directory / "tmp"
        self.temporary.mkdir()
        self.keys = directory / "keys" if keyed else None
        if self.keys is not None:
            keys_of.create(self.keys)
        saved = Saving(checkpoint=str(directory / "checkpoints"), full_every=4, keep=3)
        config = ClusterConfig(
            address="tcp://127.0.0.1:0", servers=servers, replicas=1, heartbeat_interval=0.25,
            heartbeat_timeout=stretch(1.5), lease=2.0, slice_size=4 << 10, journal=directory / "journal",
            saving=saved, keys=self.keys, server=Servers(kernels="numpy"),
        )  # fmt: skip
        self._nodes = launch.Nodes(config, self._spawn)
        try:
            run_blocking(self._nodes.start(PATIENCE))
        except BaseException:
            self.close()
            raise

    def _spawn(self, told: NodeSettings) -> Process:
        name = told.name
        instead = [sys.executable, "-m", "tests.flat.walker", told.role, f"--name={name}"]
        env = {
            **node_environment(),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            SOCKET: str(self.directory / f"{name}.sock"),
        }
        log = self.directory / f"{name}.log"
        with log.open("ab") as output:
            return Process(name, instead, stdout=output, log=log, env=env, settings=told.document())

    @property
    def address(self) -> str:
        """The coordinator's."""
        return self._nodes.address

    @property
    def names(self) -> list[str]:
        """Those of its nodes."""
        return [process.name for process in self._nodes.processes]

    @property
    def pids(self) -> list[str]:
        """The process ids of its nodes."""
        return [str(process.popen.pid) for process in self._nodes.processes]

    @property
    def operator(self) -> Keys | None:
        """The keys that an operator shows."""
        return self._nodes.keys

    def connect(self, **options: Any) -> zmqps.Worker:
        """Join it."""
        return zmqps.connect(self.address, security=zmqps.Security(keys=self.keys), timeout=PATIENCE, **options)

    def wait_until(self, good: Callable[[Mapping[str, Any]], bool]) -> None:
        """Return when the coordinator's view is as it should be."""
        run_blocking(inquire(self.address, timeout=PATIENCE, until=good, keys=self._nodes.keys))

    def endpoints(self) -> list[str]:
        """Return where its nodes listen."""
        status = run_blocking(inquire(self.address, timeout=PATIENCE, keys=self._nodes.keys))
        return [self.address, *[m["endpoint"].split()[0] for m in status["members"] if m["role"] == "server"]]

    def close(self) -> None:
        """End it."""
        run_blocking(self._nodes.stop())
        self._nodes.close()


def job(cluster: Cluster, number: int) -> None:
    """Train a job of its own from its begin to its end."""
    with cluster.connect(job=f"job-{number}") as worker:
        worker.init(
            {"w": np.zeros(SIZE, np.float32)}, optimizer=zmqps.optim.adam(0.1), mode=("async", "sync")[number % 2]
        )
        for _ in range(3):
            worker.push({"w": np.ones(SIZE, np.float32)})
        worker.pull()
        worker.barrier("end")
        worker.finish()


def strangers(endpoints: Sequence[str], number: int) -> None:
    """Knock as those do who have no key, and no manners; the last ones hang up with a reset."""
    said = (b"", NULL[:7], NULL, b"GET / HTTP/1.1\r\n\r\n")
    for index in range(number):
        parts = urlsplit(endpoints[index % len(endpoints)])
        with socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE) as plain:
            with contextlib.suppress(OSError):
                plain.sendall(said[index % len(said)])
            if index % 2:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def killed(cluster: Cluster, number: int) -> None:
    """Let so many members die at once."""
    command = [sys.executable, "-m", "tests.flat.killed", cluster.address, str(cluster.keys or ""), str(number)]
    env = {**node_environment(), "PYTHONPATH": str(ROOT)}
    with (cluster.directory / "killed.log").open("wb") as log:
        subprocess.run(command, env=env, stdout=log, stderr=log, timeout=PATIENCE, check=False)


def look(cluster: Cluster, out: Flat) -> Held:
    """Return what there is, once all are gone who are to go."""
    there = {"resident"}
    cluster.wait_until(
        lambda s: set(s["jobs"]) == there and sum(m["role"] != "server" for m in s["members"]) == 2
    )  # the trainer and the observer
    saved = len(list((cluster.directory / "checkpoints").glob("job-*")))
    assert saved == out.jobs, f"{saved} of {out.jobs} jobs are saved"
    processes = {name: ask(cluster.directory / f"{name}.sock") for name in cluster.names}
    pids = {str(os.getpid()), *cluster.pids}
    kept = cluster.directory / "checkpoints" / "resident"
    files = {
        "files in /dev/shm": sum(1 for path in SHARED_MEMORY.glob("zmqps-*") if path.name.split("-")[1] in pids),
        "temporary files": len(list(cluster.temporary.rglob("*"))),
        "files of checkpoints": sum(path.is_file() for path in kept.rglob("*")),
        "checkpoints, kB": size_kb(kept),
        "journal, kB": size_kb(cluster.directory / "journal"),
    }
    return Held(out.jobs, {**processes, "client": held()}, files)


def size_kb(directory: Path) -> int:
    """Return how much the files in a directory take."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) >> 10


def members(cluster: Cluster, endpoints: Sequence[str]) -> None:
    """Come and go, as members that leave in order, as some that are killed, and as strangers."""
    for index in range(CLEAN):
        with cluster.connect(job="resident", observer=bool(index % 2)) as member:
            member.pull() if index % 2 else None
    strangers(endpoints, STRANGERS)
    killed(cluster, KILLED)


def a_round(cluster: Cluster, trainer: zmqps.Worker, endpoints: Sequence[str], out: Flat) -> None:
    """Let jobs, connections and checkpoints come and go."""
    with ThreadPoolExecutor(AT_A_TIME + 1) as threads:
        work = [threads.submit(members, cluster, endpoints)]
        work += [threads.submit(job, cluster, out.jobs + number) for number in range(JOBS)]
        for _ in range(CHECKPOINTS):  # an operator's: workers may not ask for so many
            trainer.push({"b": np.ones(64, np.float32)})
            save_job(cluster.address, "resident", timeout=PATIENCE, keys=cluster.operator)
        for done in work:
            done.result()
    out.jobs += JOBS
    out.connections += CLEAN + KILLED + STRANGERS
    out.checkpoints += CHECKPOINTS + JOBS


def flat(
    directory: Path, rounds: int, *, servers: int = 2, keyed: bool = True, say: Callable[[str], None] = print
) -> Flat:
    """Let jobs, connections and checkpoints come and go in rounds; return what was held from the first fifth on."""
    out, cluster = Flat(), Cluster(directory, servers, keyed=keyed)
    looks = {max(1, rounds // 5), (rounds + rounds // 5) // 2, rounds}
    with contextlib.closing(cluster), cluster.connect(job="resident") as trainer:
        endpoints = cluster.endpoints()
        trainer.init(
            {"w": np.zeros(SIZE, np.float32), "b": np.zeros(64, np.float32)},
            optimizer=zmqps.optim.adam(0.1),
            mode="async",
        )
        with cluster.connect(job="resident", observer=True) as observer:
            for number in range(1, rounds + 1):
                began = time.monotonic()
                a_round(cluster, trainer, endpoints, out)
                observer.pull()
                if number in looks:
                    out.seen.append(look(cluster, out))
                say(f"round {number}, {time.monotonic() - began:.1f} s: {totals(out)}")
            trainer.finish()
    out.grown = grown(out.seen)
    return out


def grown(seen: Sequence[Held]) -> list[str]:
    """Say what there is more of at the end than in the middle and after the first fifth, beyond what may be."""
    first, middle, last = seen[0], seen[-2], seen[-1]
    found = []
    for name, after in last.processes.items():
        before = first.processes[name]
        filling = table_things(after) - table_things(middle.processes[name])
        for since, most in ((first, TABLES_KB), (middle, SPARE_KB + max(0, filling) * THING_NBYTES // 1024)):
            if (more := after["trimmed_kb"] - since.processes[name]["trimmed_kb"]) > most:
                found.append(f"{name} holds {more} kB more than after {since.jobs} jobs, {most} may be")
        for what in ("descriptors", "threads"):
            if after[what] > before[what] + SPARE_NUM:
                found.append(f"{name} has {after[what]} {what}, {before[what]} before")
        for what, num in after["inside"].items():
            num_before = before["inside"].get(what, 0)
            if num > max(num_before + SPARE_THINGS, SPARE_SHARE * num_before, bound_of(what)):
                found.append(f"{name}: {what} {num_before} -> {num}")
    for what, num in last.files.items():
        if num > max(SPARE_SHARE * first.files[what] + 4, FILES_KB.get(what, 0)):
            found.append(f"{what}: {first.files[what]} -> {num}")
    return found


def table_things(process: Mapping[str, Any]) -> int:
    """Return how much is in the tables of a process that fill until they have as much as they may."""
    return sum(num for what, num in process["inside"].items() if bound_of(what))


#: What is shown of a process.
SHOWN = {
    "memory_kb": "memory, kB",
    "trimmed_kb": "… in use, kB",
    "descriptors": "descriptors",
    "threads": "threads",
}


def table(out: Flat) -> str:
    """Return what was held in rows."""
    jobs = [held_.jobs for held_ in out.seen]
    lines = [f"{'after so many jobs':28}" + "".join(f"{num:>10}" for num in jobs)]
    for name in out.seen[-1].processes:
        for what, words in SHOWN.items():
            values = [held_.processes[name][what] for held_ in out.seen]
            lines.append(f"{f'{name}: {words}':28}" + "".join(f"{value:>10,}" for value in values))
    for what in out.seen[-1].files:
        lines.append(f"{what:28}" + "".join(f"{held_.files[what]:>10,}" for held_ in out.seen))
    return "\n".join([totals(out), *lines, *([f"GROWS: {text}" for text in out.grown] or ["nothing grows"])])


def totals(out: Flat) -> str:
    """Say how much there has been so far."""
    return f"{out.jobs} jobs, {out.connections} connections, {out.checkpoints} checkpoints"


def in_directory(rounds: int, **options: Any) -> Flat:
    """Do so in a directory that goes afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="flat-", dir=os.environ.get("TMPDIR")))
    try:
        return flat(directory, rounds, **options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
