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
from zmqps.cli.settings import setting
from zmqps.core.protocol.endpoints import is_loopback
from zmqps.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zmqps.cli.running.task import TaskConfig
    from zmqps.net.system.tasks import Rank

#: Seconds that Slurm may take to say where a node is.
SCONTROL_S = 10.0
#: How often the address of a pod is asked for.
ASK_S = 1.0


@click.command(context_settings={"allow_interspersed_args": False})
@setting(
    "--address", shared=False, metavar="HOST:PORT",
    help="Where rank 0 runs the coordinator; by default as the scheduler says.",
)  # fmt: skip
@setting(
    "--rank", shared=False, type=click.IntRange(min=0), help="Which task this is; by default as the scheduler says."
)
@setting(
    "--size", shared=False, type=click.IntRange(1, 65535), help="How many tasks; by default as the scheduler says."
)
@settings.cluster_settings
@setting("--workers-each", type=click.IntRange(1, 4096), default=1, help="How many workers each task runs.")
@settings.restart_workers
@settings.combine
@settings.restart_servers
@settings.drain_timeout
@settings.page
@settings.page_token
@setting("--servers-apart", is_flag=True, help="Tasks that have a server run no workers.")
@setting(
    "--server-tasks", type=click.IntRange(1, 65535), metavar="N",
    help="The first N tasks have all servers, and no workers, as the first part of a heterogeneous job.",
)  # fmt: skip
@setting("--interface", metavar="NAME", help="The network interface by which this host's servers are reached.")
@settings.ports
@settings.kernels
@settings.apply_threads
@settings.device
@settings.memory
@settings.io_threads
@settings.job_secret
@settings.keys
@settings.insecure
@setting("--name", shared=False, default="cluster", help="Logs go to runs/NAME/logs.")
@settings.directory
@setting("--timeout", shared=False, type=click.FloatRange(min=0), default=120.0, help="Seconds to wait for the others.")
@settings.log_level
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(**told: Any) -> int:
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
    if not told["command"]:
        raise click.UsageError("say what the workers run: zmqps run --keys keys --servers 2 -- python train.py")
    from zmqps.cli.running.output import Terminal
    from zmqps.cli.running.task import Task
    from zmqps.net import loops

    config = _config(told)
    terminal = Terminal(sys.stdout)
    try:
        return loops.run(Task(config, terminal).run())
    finally:
        terminal.close()


def _reached(found: Rank, host: str, told: Mapping[str, Any]) -> str:
    """Return the address at which rank 0 is reached, as the launcher's network has it."""
    from zmqps.launch.reach import resolved

    if found.source == "Slurm" and not told["address"]:
        return _slurm_address(host)
    return _pod_address(host, told["timeout"]) if found.source == "Kubernetes" else resolved(host)


def _config(told: dict[str, Any]) -> TaskConfig:
    from zmqps.cli.running.task import TaskConfig
    from zmqps.core.coordinator.options import CoordinatorOptions
    from zmqps.launch.config import ClusterConfig
    from zmqps.launch.ranks import num_workers, roles
    from zmqps.launch.reach import own_address, route_towards
    from zmqps.net.system.tasks import DEFAULT_PORT, Rank, find

    if told["servers_apart"] and told["server_tasks"] is not None:
        raise ConfigurationError(
            "--servers-apart and --server-tasks say different things of where servers are: give one"
        )
    all_told = None not in (told["rank"], told["size"], told["address"])
    found = Rank() if all_told else find(os.environ, socket.getfqdn())
    rank = found.rank if told["rank"] is None else told["rank"]
    size = found.size if told["size"] is None else told["size"]
    if rank is None or size is None:
        missing = "--rank" if rank is None else "--size"
        raise ConfigurationError(
            f"nothing says {missing}: give it, or start this by srun, mpirun, torchrun or an indexed Job of Kubernetes"
        )
    host, port = _split(told["address"]) if told["address"] else (found.host, found.port or DEFAULT_PORT)
    if not host:
        raise ConfigurationError(f"{found.source} does not say where rank 0 is: give --address HOST:PORT")
    where = {"apart": told["servers_apart"], "server_tasks": told["server_tasks"]}
    mine = roles(rank, size, told["servers"], told["workers_each"], **where)
    address = _reached(found, host, told)
    own = own_address("", told["interface"] or "", "", is_local=True) or route_towards(address)
    free = told["insecure"] or told["keys"] is not None
    if not free and not is_loopback(address):
        raise ConfigurationError(
            f"{address} can be reached from other hosts: pass --keys DIR, which `zmqps keys create DIR` makes and "
            "every host needs a copy of, or --insecure on a network that you trust"
        )
    endpoint = f"tcp://{_bracketed(address)}:{port}"
    options = CoordinatorOptions(
        servers=told["servers"],
        workers=num_workers(size, told["servers"], told["workers_each"], **where),
        heartbeat_interval=told["heartbeat_interval"], heartbeat_timeout=told["heartbeat_timeout"],
        lease=told["lease"], idle_timeout=told["idle_timeout"], once=told["once"], slice_nbytes=told["slice_size"],
        replicas=told["replicas"], fallback_timeout=told["fallback_timeout"],
    )  # fmt: skip
    cluster = ClusterConfig(
        options=options, address=endpoint, kernels=told["kernels"],
        insecure=told["keys"] is None and not is_loopback(address),
        log_level=told["log_level"], apply_threads=told["apply_threads"],
        devices=(told["device"],), memory_nbytes=told["memory"], job_secret=told["job_secret"],
        keys=told["keys"], io_threads=told["io_threads"], ports=told["ports"] or "",
        checkpoints=settings.checkpoint_config(told), restart_servers=told["restart_servers"],
        values=told["values"], page=told["page"] or "", page_token=told["page_token"],
    )  # fmt: skip
    return TaskConfig(
        cluster=cluster, roles=mine, rank=rank, size=size, address=endpoint, own=_bracketed(own),
        host=socket.gethostname(), command=told["command"], env=_thread_limits(told["workers_each"], found.source),
        name=told["name"], directory=told["directory"], timeout=told["timeout"], restarts=told["restart_workers"],
        drain_timeout=told["drain_timeout"], combine=told["combine"],
    )  # fmt: skip


def _split(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``tcp://HOST:PORT``; the port may be left out."""
    from zmqps.net.system.tasks import DEFAULT_PORT

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
    from zmqps.net.deadlines import Deadline

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
