"""``zmqps coordinator`` and ``zmqps server``: one node, in the foreground."""

from __future__ import annotations

from dataclasses import replace

import click

from zmqps.cli import settings
from zmqps.core.protocol import exits
from zmqps.errors import PSError
from zmqps.logs.handler import set_up_logging
from zmqps.settings.coordinator import CoordinatorSettings
from zmqps.settings.server import ServerSettings


@click.command()
@settings.options_of(CoordinatorSettings)
@settings.parent_fd
def coordinator(told: CoordinatorSettings, parent_fd: int | None) -> int:
    """Run a coordinator.

    It places jobs and tracks members.
    """
    return _run(told, parent_fd)


@click.command()
@settings.options_of(ServerSettings)
@settings.parent_fd
def server(told: ServerSettings, parent_fd: int | None) -> int:
    """Run a server.

    It holds a shard of each job's model.
    """
    return _run(told, parent_fd)


def _run(told: CoordinatorSettings | ServerSettings, parent_fd: int | None) -> int:
    """Run a node; one that a launcher has started gets its settings from there, and says there why it cannot start."""
    from zmqps.launch.processes import received, refuse
    from zmqps.net.system.stacks import answer_signal

    answer_signal()  # its standard error is its log, where `zmqps stack` looks
    try:
        if parent_fd is not None:
            told = told.from_document(received(parent_fd))
        return _run_node(told, parent_fd)
    except PSError as error:
        if parent_fd is None:
            raise
        refuse(parent_fd, error)
        return exits.FAILED


def _run_node(told: CoordinatorSettings | ServerSettings, parent_fd: int | None) -> int:
    if isinstance(told, ServerSettings) and not told.name and told.index is not None:
        told = replace(told, name=f"server-{told.index}")
    set_up_logging(told.name or told.role, level=told.log_level)
    if isinstance(told, ServerSettings):
        from zmqps.nodes import server

        return server.run(server.ServerConfig.taken_from(told), parent_fd)
    from zmqps.nodes import coordinator

    return coordinator.run(coordinator.CoordinatorConfig.taken_from(told), parent_fd)
