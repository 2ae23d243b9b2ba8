"""``zmqps coordinator`` and ``zmqps server``: one node, in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from zmqps.cli import settings
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits
from zmqps.errors import PSError
from zmqps.logs.handler import set_up_logging


@click.command()
@setting(
    "--address", shared=False, show_default="tcp://127.0.0.1:5570",
    help="Where to listen: tcp://HOST:PORT, tcp://0.0.0.0:PORT or tcp://[::]:PORT for all; port 0 takes a free one.",
)  # fmt: skip
@settings.advertise
@settings.interface
@settings.cluster_settings
@setting(
    "--workers",
    type=click.IntRange(1, 65535),
    help="How many workers a job expects; by default, any number.",
)
@setting("--name", shared=False, help="This node's name in logs and errors.")
@settings.job_secret
@settings.keys
@settings.insecure
@settings.log_level
@settings.journal
@settings.patience
@settings.page
@settings.page_token
@settings.own_servers
@settings.parent_fd
def coordinator(**told: Any) -> int:
    """Run a coordinator.

    It places jobs and tracks members.
    """
    set_up_logging(told["name"] or "coordinator", level=told["log_level"])
    from zmqps.core.coordinator.options import CoordinatorOptions
    from zmqps.nodes.coordinator import CoordinatorConfig, run
    from zmqps.web.place import WebPlace

    options = CoordinatorOptions(
        servers=told["servers"], workers=told["workers"], heartbeat_interval=told["heartbeat_interval"],
        heartbeat_timeout=told["heartbeat_timeout"], lease=told["lease"], idle_timeout=told["idle_timeout"],
        replicas=told["replicas"], fallback_timeout=told["fallback_timeout"],
        once=told["once"], slice_nbytes=told["slice_size"], patience=told["patience"],
    )  # fmt: skip
    return _run(
        lambda: run(
            CoordinatorConfig(
                bind=told["address"] or "",
                advertise=told["advertise"] or "",
                interface=told["interface"] or "",
                options=options,
                name=told["name"],
                insecure=told["insecure"],
                job_secret=told["job_secret"],
                keys=told["keys"],
                own_servers=told["own_servers"],
                journal=told["journal"],
                page=WebPlace(told["page"] or "", told["page_token"], told["insecure"], "page"),
                checkpoints=settings.checkpoint_config(told),
                values=told["values"],
            ),
            told["parent_fd"],
        ),
        told["parent_fd"],
    )


@click.command()
@setting("--coordinator", default="tcp://127.0.0.1:5570", help="The coordinator's endpoint.")
@setting(
    "--address", shared=False, show_default="the address by which it reaches the coordinator",
    help="Where to listen: tcp://HOST:PORT, tcp://0.0.0.0:PORT or tcp://[::]:PORT for all; port 0 takes a free one.",
)  # fmt: skip
@settings.advertise
@settings.interface
@settings.ports
@settings.kernels
@settings.apply_threads
@settings.device
@settings.memory
@settings.io_threads
@settings.handover_timeout
@setting(
    "--spare", is_flag=True, help="Start as a standby: take over from lost servers; get new jobs only as a last resort."
)
@setting(
    "--index", type=click.IntRange(0, 4095), shared=False,
    help="The server's number; by default, the lowest free one that no launcher has assigned.",
)  # fmt: skip
@setting("--name", shared=False, help="This node's name in logs and errors.")
@settings.job_secret
@settings.keys
@settings.insecure
@settings.metrics
@settings.metrics_token
@settings.log_level
@settings.parent_fd
def server(
    coordinator: str,
    address: str | None,
    advertise: str | None,
    interface: str | None,
    ports: str | None,
    kernels: str,
    apply_threads: int,
    device: str,
    memory: int | None,
    io_threads: int,
    handover_timeout: float,
    spare: bool,
    index: int | None,
    name: str | None,
    job_secret: Path | None,
    keys: Path | None,
    insecure: bool,
    metrics: str | None,
    metrics_token: Path | None,
    log_level: str,
    parent_fd: int | None,
) -> int:
    """Run a server.

    It holds a shard of each job's model.
    """
    if name is None and index is not None:
        name = f"server-{index}"
    set_up_logging(name or "server", level=log_level)
    from zmqps.nodes.server import ServerConfig, run
    from zmqps.web.place import WebPlace

    return _run(
        lambda: run(
            ServerConfig(
                coordinator=coordinator,
                bind=address or "",
                advertise=advertise or "",
                interface=interface or "",
                ports=ports or "",
                name=name,
                kernels=kernels,
                insecure=insecure,
                apply_threads=apply_threads,
                device=device,
                memory_nbytes=memory,
                job_secret=job_secret,
                keys=keys,
                io_threads=io_threads,
                spare=spare,
                handover_timeout=handover_timeout,
                metrics=WebPlace(metrics or "", metrics_token, insecure),
                index=index,
            ),
            parent_fd,
        ),
        parent_fd,
    )


def _run(node: Callable[[], Any], parent_fd: int | None) -> int:
    """Run a node; if it cannot start, report the reason to a parent process that asked for it."""
    from zmqps.net.system.stacks import answer_signal

    answer_signal()  # its standard error is its log, where `zmqps stack` looks
    try:
        return int(node())
    except PSError as error:
        if parent_fd is None:
            raise
        from zmqps.launch.processes import refuse

        refuse(parent_fd, error)
        return exits.FAILED
