"""``zmqps run``: the same command on every host, which decides by its rank what it is."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from zmqps.cli import settings
from zmqps.core.protocol.endpoints import is_loopback
from zmqps.errors import ConfigurationError
from zmqps.settings.cluster import RunSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zmqps.cli.running.task import TaskConfig
    from zmqps.net.system.environment import Rank

#: Seconds that Slurm may take to say where a node is.
SCONTROL_S = 10.0
#: How often the address of a pod is asked for.
ASK_S = 1.0


@click.command(context_settings={"allow_interspersed_args": False})
@settings.options_of(RunSettings)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(told: RunSettings, command: tuple[str, ...]) -> int:
    """Run this task of Slurm, MPI or Kubernetes.

    The tasks together are a cluster. Every host, or task of a scheduler, runs the same command.

    \b
    zmqps keys create keys       (once; every host needs it, shared or copied)
    srun --ntasks-per-node=1 zmqps run --keys keys --servers 2 -- python train.py
    mpirun -n 4 zmqps run --keys keys --address HOST:5570 -- python train.py
    zmqps run --keys keys --address HOST:5570 --rank 0 --size 4 -- python train.py

    Rank 0 runs the coordinator as well, some ranks a server, each a worker that runs COMMAND. Rank and size come from
    the environment of Slurm, Open MPI, PMI, torchrun or Kubernetes. All end when all workers have ended, or the first
    has failed.
    """
    if not command:
        raise click.UsageError("say what the workers run: zmqps run --keys keys --servers 2 -- python train.py")
    from zmqps.cli.running.output import Terminal
    from zmqps.cli.running.task import Task
    from zmqps.net import loops

    config = _config(told, command)
    terminal = Terminal(sys.stdout)
    try:
        return loops.run(Task(config, terminal).run())
    finally:
        terminal.close()


def _reached(found: Rank, host: str, told: RunSettings) -> str:
    """Return the address at which rank 0 is reached, as the launcher's network has it."""
    from zmqps.launch.reach import resolved

    if found.source == "Slurm" and not told.address:
        return _slurm_address(host)
    return _pod_address(host, told.timeout) if found.source == "Kubernetes" else resolved(host)


def _config(told: RunSettings, command: Sequence[str]) -> TaskConfig:
    from zmqps.cli.running.task import TaskConfig
    from zmqps.launch.config import ClusterConfig
    from zmqps.launch.ranks import num_workers, roles
    from zmqps.launch.reach import own_address, route_towards
    from zmqps.net.system.environment import DEFAULT_PORT, Rank, find_task

    if told.servers_apart and told.server_tasks is not None:
        raise ConfigurationError("--servers-apart and --server-tasks both say where servers run: give one of them")
    all_told = None not in (told.rank, told.size) and told.address
    found = Rank() if all_told else find_task(os.environ, socket.getfqdn())
    rank = found.rank if told.rank is None else told.rank
    size = found.size if told.size is None else told.size
    if rank is None or size is None:
        missing = "--rank" if rank is None else "--size"
        raise ConfigurationError(
            f"nothing says {missing}: give it, or start this by srun, mpirun, torchrun or an indexed Job of Kubernetes"
        )
    host, port = _split(told.address) if told.address else (found.host, found.port or DEFAULT_PORT)
    if not host:
        raise ConfigurationError(f"{found.source} does not say where rank 0 is: give --address HOST:PORT")
    where: dict[str, Any] = {"apart": told.servers_apart, "server_tasks": told.server_tasks}
    mine = roles(rank, size, told.cluster.servers, told.workers_each, **where)
    address = _reached(found, host, told)
    own = own_address("", told.cluster.interface, "", is_local=True) or route_towards(address)
    keyed = told.cluster.keys is not None
    if not (told.cluster.insecure or keyed or is_loopback(address)):
        raise ConfigurationError(
            f"{address} can be reached from other hosts: pass --keys DIR, which `zmqps keys create DIR` makes and "
            "every host needs a copy of, or --insecure on a network that you trust"
        )
    endpoint = f"tcp://{_bracketed(address)}:{port}"
    cluster = ClusterConfig.taken_from(
        told.cluster, address=endpoint, interface="", insecure=not keyed and not is_loopback(address),
        workers=num_workers(size, told.cluster.servers, told.workers_each, **where),
    )  # fmt: skip
    return TaskConfig.taken_from(
        told, cluster=cluster, roles=mine, rank=rank, size=size, address=endpoint, own=_bracketed(own),
        here=socket.gethostname(), command=command, env=_thread_limits(told.workers_each, found.source),
    )  # fmt: skip


def _split(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``tcp://HOST:PORT``; the port may be left out."""
    from zmqps.net.system.environment import DEFAULT_PORT

    match = re.fullmatch(r"(?:tcp://)?(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", address)
    port = int(match[3]) if match is not None and match[3] else DEFAULT_PORT
    if match is None or not 0 < port < 65536:
        raise ConfigurationError(f"--address {address!r:.100} cannot be used: write HOST:PORT or [IPV6]:PORT")
    return match[1] or match[2], port


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _slurm_address(host: str) -> str:
    """Return the address of a node, which Slurm knows also where its name means nothing to this host."""
    from zmqps.launch.reach import resolved

    try:
        return resolved(host)
    except ConfigurationError:
        scontrol = shutil.which("scontrol")
        if scontrol is None:
            raise
        result = subprocess.run(
            [scontrol, "show", "node", host], capture_output=True, text=True, timeout=SCONTROL_S, check=False
        )
        match = re.search(r"\bNodeAddr=(\S+)", result.stdout)
        if match is None:
            raise
        return resolved(match[1])


def _pod_address(name: str, timeout: float) -> str:
    """Return the address of a pod; its name may be published only after this pod has started."""
    from zmqps.launch.reach import resolved
    from zmqps.net.loops import Deadline

    deadline, told = Deadline(timeout), False
    while True:
        try:
            return resolved(name)
        except ConfigurationError:
            if deadline.is_over:
                raise
        if not told:
            click.echo(f"waiting until the name {name} of the first pod resolves, {timeout:g} s at most", err=True)
            told = True
        time.sleep(deadline.wait_s(ASK_S))  # a name server does not announce new names


def _thread_limits(workers_each: int, source: str) -> dict[str, str]:
    """Return the variables by which the workers of this task share the cores that are the task's."""
    from zmqps.launch.agent import thread_limits

    cores = os.environ.get("SLURM_CPUS_PER_TASK", "") if source == "Slurm" else ""
    if re.fullmatch(r"[1-9]\d{0,5}", cores):
        return thread_limits(workers_each, int(cores))
    return thread_limits(_tasks_here(source) * workers_each)


def _tasks_here(source: str) -> int:
    """Return how many tasks share this host, where the scheduler says so."""
    if source == "Slurm":
        return 1 + os.environ.get("SLURM_GTIDS", "").count(",")  # the ranks of the step that run here
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS"):
        if match := re.match(r"\d{1,6}", os.environ.get(name, "")):
            return max(1, int(match[0]))
    return 1
