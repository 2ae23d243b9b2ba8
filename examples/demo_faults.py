"""What `make demo FAULTS=1` kills, and how long each took to be made good. See demo.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import zmqps

ZMQPS = (sys.executable, "-m", "zmqps")
#: Seconds that anything may take to be as it was.
PATIENCE = 60.0
TICK = 0.05

Status = Mapping[str, Any]


@dataclass(frozen=True)
class Fault:
    """A node that was killed with SIGKILL."""

    node: str
    seconds: float  # until all was as before
    pushes: int  # that workers made meanwhile
    how: str  # what made it good


@contextmanager
def durable_cluster(directory: Path, **options: Any) -> Iterator[str]:
    """Start a cluster that survives the death of any node; yield the address of its coordinator.

    It is what a user would type: `zmqps up --detach --replicas 1`. Each shard has a copy on another server, and the
    coordinator a journal.
    """
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    here = ["--directory", str(directory)]
    up = [*ZMQPS, "up", "--detach", "--replicas=1", "--address=tcp://127.0.0.1:0", *here, *flags]
    said = subprocess.run(up, check=True, capture_output=True, text=True).stdout
    found = re.search(r"tcp://\S+[0-9]", said)
    assert found, said
    try:
        yield found[0]
    finally:
        subprocess.run([*ZMQPS, "down", *here], check=False, capture_output=True)


class Faults:
    """A server and the coordinator, killed after a third and two thirds of the training.

    Parameters
    ----------
    address
        Of the cluster.
    total
        Pushes of the whole training.
    """

    def __init__(self, address: str, total: int) -> None:
        self.done: list[Fault] = []
        self._address = address
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._running = self._thread.submit(self._run, total)

    def _run(self, total: int) -> None:
        with zmqps.connect(self._address, observer=True) as observer:
            for part, kill in ((1 / 3, self.kill_server), (2 / 3, self.kill_coordinator)):
                while num_pushes(observer.status(timeout=PATIENCE)) < part * total:
                    if self._over.wait(TICK):
                        return
                kill(observer)

    def kill_server(self, observer: zmqps.Worker) -> None:
        """Kill a server: the copy of its shard takes over, and `zmqps up` starts it again to keep copies."""

        def good(status: Status) -> bool:
            jobs = status["jobs"].values()
            return not any(m["pid"] == victim["pid"] for m in status["members"]) and not any(
                job["replicas"]["degraded"] for job in jobs
            )

        victim = next(member for member in observer.status()["members"] if member["role"] == "server")
        how = "the copy of its shard took over; started again, it keeps copies"
        self._kill(observer, victim["pid"], victim["name"], how, good)

    def kill_coordinator(self, observer: zmqps.Worker) -> None:
        """Kill the coordinator: `zmqps up` starts it again, and it continues from its journal."""
        status = observer.status()
        members = {member["pid"] for member in status["members"]}
        how = "started again, it continued from its journal"
        self._kill(observer, status["pid"], "coordinator", how, lambda status: all(has(status, pid) for pid in members))

    def _kill(self, observer: zmqps.Worker, pid: int, node: str, how: str, good: Callable[[Status], bool]) -> None:
        before, began = num_pushes(observer.status()), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while not good(status := observer.status(timeout=PATIENCE)):
            if time.monotonic() > began + PATIENCE:
                raise TimeoutError(f"the cluster is not what it was {PATIENCE:.0f} s after {node} was killed")
            time.sleep(TICK)
        self.done.append(Fault(node, round(time.monotonic() - began, 2), num_pushes(status) - before, how))

    def finish(self) -> list[Fault]:
        """The training is over: return what was killed; raise what went wrong with that."""
        self._over.set()
        self._running.result(PATIENCE)
        return self.done

    def close(self) -> None:
        """Kill nothing more."""
        self._over.set()
        self._thread.shutdown()


def has(status: Status, pid: int) -> bool:
    """Whether a node is there, and has given a sign of life."""
    return any(member["pid"] == pid and member["counters"] for member in status["members"])


def num_pushes(status: Status) -> int:
    """Return how many pushes the workers' last heartbeats told of."""
    workers = (member for member in status["members"] if member["role"] == "worker")
    return sum(int(member["counters"].get("pushes", 0)) for member in workers)


def table(faults: list[Fault], lost: int) -> Table:
    """Return what was killed and what it cost, to print."""
    shown = Table(caption=f"acknowledged pushes lost: [bold]{lost}[/bold]", caption_style="")
    shown.add_column("killed")
    shown.add_column("made good after", justify="right")
    shown.add_column("pushes meanwhile", justify="right")
    shown.add_column("how")
    for fault in faults:
        shown.add_row(fault.node, f"{fault.seconds:.1f} s", str(fault.pushes), fault.how)
    return shown
