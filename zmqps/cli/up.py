"""``zmqps up`` and ``zmqps down``: a cluster on this host, in the foreground or the background."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from zmqps.cli import settings
from zmqps.cli.look import reach, shown_keys
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError, NodeFailedError, PSError
from zmqps.settings.cluster import UpSettings

if TYPE_CHECKING:
    from zmqps.cli.running.output import Terminal
    from zmqps.cli.running.state import State

#: How long a cluster may take to end.
DOWN_S = 20.0


@click.command(context_settings={"allow_interspersed_args": False})
@settings.options_of(UpSettings)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def up(told: UpSettings, command: tuple[str, ...]) -> int:
    """Start a whole cluster on this host.

    It starts a coordinator, servers and workers. The workers run COMMAND; without it, no workers are started.

    \b
    zmqps up --servers 2                                  until Ctrl-C
    zmqps up --servers 2 --workers 4 -- python train.py   until the workers end
    zmqps up --servers 2 --detach                         until `zmqps down`
    zmqps up --servers-per-gpu 1 --workers 4 --pin-workers -- python train.py

    Each worker finds the coordinator in ZMQPS_COORDINATOR and its number in ZMQPS_WORKER_INDEX; all of them
    share a secret for their channels, ZMQPS_CHANNEL_SECRET.
    """
    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r}")
    if command and told.cluster.workers is None:
        told = replace(told, cluster=replace(told.cluster, workers=1))
    if told.detach:
        return _detach(told, command)
    from zmqps.cli.running.output import Terminal

    terminal = Terminal(sys.stdout)
    try:
        return _supervise(told, command, terminal, lambda state: None)
    finally:
        terminal.close()


def _supervise(
    told: UpSettings, command: Sequence[str], terminal: Terminal | None, ready: Callable[[State], None]
) -> int:
    from zmqps.cli.running.state import FOLDER
    from zmqps.cli.running.supervisor import Supervisor, UpConfig
    from zmqps.gpu.pinning import pin, spread, visible_gpus
    from zmqps.launch.config import ClusterConfig
    from zmqps.net import loops

    server = told.cluster.server
    gpus = visible_gpus() if server.servers_per_gpu or told.pin_workers else ()
    devices = spread(server.device, server.servers_per_gpu, gpus) or ()
    if told.pin_workers:
        pin(gpus, 0)  # a missing GPU is reported before anything is started
    cluster = ClusterConfig.taken_from(
        told.cluster, servers=len(devices) or told.cluster.servers, devices=devices,
        journal=told.directory.absolute() / FOLDER / "journal",
    )  # fmt: skip
    config = UpConfig.taken_from(told, cluster=cluster, command=command, gpus=gpus if told.pin_workers else ())
    return loops.run(Supervisor(config, terminal, ready).run())


def _detach(told: UpSettings, command: Sequence[str]) -> int:
    """Run the supervisor in a process and session of its own; return when it is ready or has failed.

    Forked rather than executed again, so that it has read the same flags, environment and file.
    Whatever might start threads is imported after the fork only.
    """
    from zmqps.errors import from_wire
    from zmqps.launch.processes import REFUSAL

    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_background(told, command, writer)
    os.close(writer)
    try:
        with os.fdopen(reader) as file:
            line = file.readline()
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    if line.startswith("{"):
        state = json.loads(line)
        click.echo(f"cluster at {state['address']}, supervisor pid {state['pid']}")
        if state["page"]:
            click.echo(f"page at {state['page']}")
        click.echo(f"logs in {state['logs']}, or `zmqps logs`; `zmqps down` ends it")
        return exits.OK
    _, status = os.waitpid(pid, 0)
    if line.startswith(REFUSAL):
        raise from_wire(**json.loads(line.removeprefix(REFUSAL)))
    code = os.waitstatus_to_exitcode(status)
    raise NodeFailedError(name="the supervisor", how=f"exit code {code}", tail="  (see runs/*/logs/supervisor.log)")


def _be_background(told: UpSettings, command: Sequence[str], writer: int) -> None:
    """Be the supervisor in the background; does not return."""
    from zmqps.launch.processes import refuse

    code = exits.FAILED
    try:
        os.setsid()
        with open(os.devnull, "r+b") as null:
            for fd in (0, 1, 2):
                os.dup2(null.fileno(), fd)
        code = _supervise(told, command, None, lambda state: _report(writer, state))
    except PSError as error:
        refuse(writer, error)
    except BaseException:
        refuse(writer, PSError(f"internal error; please report it\n{traceback.format_exc()}"))
    finally:
        os._exit(code)


def _report(writer: int, state: State) -> None:
    told = {"pid": state.pid, "address": state.address, "logs": state.logs, "page": state.page}
    os.write(writer, json.dumps(told).encode() + b"\n")


@click.command()
@setting(
    "--coordinator", shared=False,
    help="End the cluster of the coordinator at this endpoint, also on another host; needs its user, a node's "
    "key or the job secret.",
    show_default="the cluster that was started here",
    example="tcp://10.0.0.1:5570",
)  # fmt: skip
@settings.job_secret
@shown_keys
@settings.directory
@setting(
    "--timeout",
    shared=False,
    type=click.FloatRange(min=0),
    show_default="20, and where it saves its jobs 600 more",
    example=20,
    help="Seconds until the processes are killed; of a cluster elsewhere, to wait for its end.",
)
def down(
    coordinator: str | None, job_secret: Path | None, keys: Path | None, directory: Path, timeout: float | None
) -> int:
    """End the cluster started here, or another.

    It waits until all processes that `zmqps up` has started here have ended, and ends with code 9 where a job could not
    be saved. With --coordinator it ends any other cluster: its coordinator informs workers and servers, and has ended
    when this returns.
    """
    if coordinator is not None:
        from zmqps.nodes.inquiry import end_cluster

        address, shown = reach(coordinator, keys, directory)
        end_cluster(address, timeout=DOWN_S if timeout is None else timeout, job_secret=job_secret, keys=shown)
        click.echo(f"ended the cluster at {coordinator}")
        return exits.OK
    from zmqps.cli.running.state import open_state

    file = open_state(directory)
    if file is None:
        click.echo("no cluster runs here")
        return exits.OK
    with file:
        return _end_here(file, directory, timeout)


def _end_here(file: BinaryIO, directory: Path, timeout: float | None) -> int:
    """End the cluster that a file says runs here, or what is left of it."""
    from zmqps.cli.running.state import end_rest, end_supervisor, forget_state, state_in, state_path
    from zmqps.core.coordinator.saving.making import WAITS_S
    from zmqps.net import loops

    state = state_in(file)
    if state.elsewhere:
        raise ConfigurationError(
            f"{state_path(directory)} is of a cluster on {state.elsewhere}, which shares this directory: run this "
            "there; if none runs there, remove the file"
        )
    saves_s = WAITS_S if state.saves else 0.0
    timeout = DOWN_S + saves_s if timeout is None else timeout
    if not state.running:
        if not state_path(directory).exists():  # it has just ended by itself
            click.echo("no cluster runs here")
            return exits.OK
        forget_state(directory)
        loops.run(end_rest(state.pid, state.start, timeout))
        click.echo(f"no cluster runs here; the last one's supervisor (pid {state.pid}) had been killed")
        return exits.OK
    if not state.pid:
        raise PSError("a cluster is just starting here; try again")
    where = f" at {state.address}" if state.address else ", which was starting"
    if loops.run(end_supervisor(state.pid, state.start, timeout, str(state_path(directory)))):
        if state_in(file).unsaved:
            click.echo(f"ended the cluster{where}, a job of it without its last checkpoint: {state.logs} say why")
            return exits.NOT_SAVED
        click.echo(f"ended the cluster{where}")
    else:
        forget_state(directory)
        click.echo(f"killed the cluster{where}: it had not ended within {timeout:g} s")
    return exits.OK
