"""standstill: how long training stands still when a process of it is killed, with the defaults of each launcher."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click
import psutil

import zmqps
from bench.namespaces import HERE, THERE, Hosts, NamespaceError, WireOptions, become_able
from bench.options import json_option
from bench.results import Row, write_rows
from bench.stats import percentile

SERVERS, WORKERS = 2, 2
#: Trains in the synchronous mode, and writes down when each step was over.
SCRIPT = """if True:
    import os, sys, time
    import numpy as np
    import zmqps
    with zmqps.connect() as worker, open(f"{sys.argv[1]}/{os.getpid()}.steps", "w", buffering=1) as file:
        worker.init({"w": np.zeros(250_000, "f4")}, optimizer=zmqps.optim.sgd(learning_rate=0.1), mode="sync")
        gradients = {"w": np.ones(250_000, "f4")}
        while True:
            worker.push_pull(gradients)
            file.write(f"{time.time()!r}\\n")
            time.sleep(0.02)
"""
#: In the place of ssh: runs a command in the network namespace of a host.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in {here}) net={net_here};; *) net={net_there};; esac
exec nsenter --net=$net sh -c "$3"
"""
#: Steps before something is killed; training goes on if there is another one so many seconds after that.
STEPS, ON_S = 30, 2.5
PATIENCE_S = 180.0
POLL_S = 0.02
#: Of what there is between two namespaces.
WIRE = WireOptions(mbit=10_000)

CASES = {
    "up: a server with a copy": ("up", "server", ("--replicas", "1")),
    "up: a worker": ("up", "worker", ()),
    "launch on two hosts: a server with a copy": ("launch", "server", ("--replicas", "1")),
    "launch on two hosts: a worker, --restart-workers 1": ("launch", "worker", ("--restart-workers", "1")),
    "LocalCluster: a server with a copy": ("local", "server", ()),
}


def standstill(place: str, victim: str, options: Sequence[str]) -> float:
    """Train, kill a process in the midst of that, and return the longest time between two steps of a survivor."""
    with tempfile.TemporaryDirectory(prefix="zmqps-standstill-") as folder:
        there = Path(folder)
        with _local(there) if place == "local" else _launched(place, there, options) as root:
            _wait(lambda: len(_ends(there)) >= WORKERS and all(len(e) >= STEPS for e in _ends(there).values()))
            pid = _find(root, victim)
            os.kill(pid, signal.SIGKILL)
            killed_at = time.time()
            survivors = [w for w in _ends(there) if w != pid]
            _wait(lambda: all(_ends(there)[name][-1] > killed_at + ON_S for name in survivors))
            return max(_longest(_ends(there)[name], killed_at) for name in survivors)


def _wait(done: object) -> None:
    assert callable(done)
    ends_at = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > ends_at:
            raise RuntimeError(f"training did not come so far in {PATIENCE_S:g} s")
        time.sleep(POLL_S)


def _ends(folder: Path) -> dict[int, list[float]]:
    """Return when each worker was done with its steps, by its process."""
    found = {}
    for path in folder.glob("*.steps"):
        whole, _, _ = path.read_text().rpartition("\n")
        found[int(path.stem)] = [float(line) for line in whole.splitlines()]
    return found


def _longest(ends: Sequence[float], killed_at: float) -> float:
    return max(after - before for before, after in pairwise(ends) if after > killed_at)


def _find(root: int, victim: str) -> int:
    """Return a process below another one: the last server's, or one of the workers'."""
    found = []
    for process in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            is_worker = SCRIPT in words and "-c" in words and words[0].endswith("python")
            if is_worker if victim == "worker" else words[3:5] == ["zmqps", "server"]:
                found.append(process.pid)
    return max(found)


@contextlib.contextmanager
def _launched(place: str, folder: Path, options: Sequence[str]) -> Iterator[int]:
    """Have `zmqps up` or `zmqps launch` run workers; yield its process."""
    with contextlib.ExitStack() as stack:
        words = ["--servers", str(SERVERS), "--workers", str(WORKERS), *options]
        if place == "up":
            words += ["--address", "tcp://127.0.0.1:0"]
        else:
            hosts = stack.enter_context(Hosts(WIRE))
            ssh = folder / "ssh"
            ssh.write_text(SSH.format(here=HERE, net_here=hosts.here, net_there=hosts.there))
            ssh.chmod(0o700)
            (folder / "hosts.txt").write_text(f"{HERE} address={HERE} slots=1\n{THERE} address={THERE} slots=1\n")
            words += ["--hosts", "hosts.txt", "--ssh", shlex.quote(str(ssh)), "--remote-directory", str(folder)]
        command = [sys.executable, "-m", "zmqps", place, *words, "--", "python", "-c", SCRIPT, str(folder)]
        log = stack.enter_context(open(folder / "log", "w+b"))
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process.pid
        except BaseException:
            log.seek(0)
            click.echo(log.read()[-4000:].decode(errors="replace"), err=True)
            raise
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()


@contextlib.contextmanager
def _local(folder: Path) -> Iterator[int]:
    """Have a `LocalCluster` in this process, and workers beside it; yield this process."""
    with zmqps.LocalCluster(servers=SERVERS, workers=WORKERS, replicas=1) as cluster:
        env = os.environ | {"ZMQPS_COORDINATOR": cluster.address}
        command = [sys.executable, "-c", SCRIPT, str(folder)]
        workers = [subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) for _ in range(WORKERS)]
        try:
            yield os.getpid()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@click.command("standstill")
@click.option("--runs", type=click.IntRange(1), default=10, show_default=True, help="Of each case.")
@click.option("--only", default="", metavar="TEXT", help="Cases with this text in their names.")
@json_option
def command(runs: int, only: str, json_path: Path | None) -> None:
    """How long synchronous training stands still after kill -9, with the defaults of each launcher.

    Two servers, two workers that compute 20 ms a step; the longest time between two steps of those that live. The two
    hosts are network namespaces of this machine, which takes root.
    """
    rows = []
    for name, (place, victim, options) in CASES.items():
        if only not in name:
            continue
        if place == "launch":
            try:
                become_able(sys.argv[1:])
            except NamespaceError as error:
                click.echo(f"{name}: left out: {error}")
                continue
        seconds = [standstill(place, victim, options) for _ in range(runs)]
        median, load = percentile(seconds, 50), os.getloadavg()[0]
        click.echo(f"{name}: median {median:.2f} s, maximum {max(seconds):.2f} s ({runs} runs, load {load:.1f})")
        rows.append(
            Row(
                case="standstill", servers=SERVERS, workers=WORKERS, median_s=median, steps=runs,
                extra={"what": name, "max_s": max(seconds), "load": load},
            )
        )  # fmt: skip
    if json_path is not None:
        write_rows(json_path, rows)
