"""``zmqps up`` and ``zmqps down``: a cluster on this host, in the foreground or the background."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqps.cli import settings
from zmqps.cli.settings import setting
from zmqps.core import exits
from zmqps.errors import NodeFailedError, PSError

if TYPE_CHECKING:
    from zmqps.cli.output import Terminal
    from zmqps.cli.state import State


@click.command(context_settings={"allow_interspersed_args": False})
@settings.cluster_settings
@setting("--workers", type=click.IntRange(min=1), help="How many workers the job has; with COMMAND they are started.")
@setting(
    "--address", shared=False, default="tcp://127.0.0.1:5570",
    help="Where the coordinator listens; port 0 takes a free one.",
)  # fmt: skip
@settings.kernels
@settings.insecure
@setting("--name", shared=False, default="cluster", help="Logs go to runs/NAME/logs.")
@settings.directory
@setting("--timeout", type=click.FloatRange(min=0), default=30.0, help="Seconds to wait for the start.")
@setting("--detach", "-d", is_flag=True, shared=False, help="Return when the servers have joined.")
@settings.log_settings
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def up(**told: Any) -> int:
    """Start a coordinator and servers here, and workers that run COMMAND.

    \b
    zmqps up --servers 2                                  until Ctrl-C
    zmqps up --servers 2 --workers 4 -- python train.py   until the workers have ended
    zmqps up --servers 2 --detach                         until `zmqps down`

    Each worker finds the coordinator in ZMQPS_COORDINATOR and its number in ZMQPS_WORKER_INDEX.
    """
    command = told["command"]
    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r}")
    if command and told["workers"] is None:
        told["workers"] = 1
    if told["detach"]:
        return _detach(told)
    from zmqps.cli.output import Terminal

    terminal = Terminal(sys.stdout)
    try:
        return _supervise(told, terminal, lambda state: None)
    finally:
        terminal.close()


def _supervise(told: dict[str, Any], terminal: Terminal | None, ready: Callable[[State], None]) -> int:
    from zmqps.cli.supervisor import Supervisor, UpConfig
    from zmqps.cluster import ClusterConfig
    from zmqps.core.coordinator import CoordinatorOptions

    options = CoordinatorOptions(
        told["servers"], told["workers"], told["heartbeat_interval"], told["heartbeat_timeout"],
        told["idle_timeout"], told["slice_size"],
    )  # fmt: skip
    cluster = ClusterConfig(
        options, told["address"], told["kernels"], told["insecure"], told["log_level"], told["log_json"]
    )  # fmt: skip
    config = UpConfig(
        cluster, told["command"], told["workers"] or 0, told["name"], told["directory"], told["timeout"]
    )  # fmt: skip
    return asyncio.run(Supervisor(config, terminal, ready).run())


def _detach(told: dict[str, Any]) -> int:
    """Run the supervisor in a process and session of its own; return when it is ready or has failed.

    Forked rather than executed anew, so that it has read the same flags, environment and file.
    Whatever might start threads is imported after the fork only.
    """
    from zmqps.errors import from_wire
    from zmqps.processes import REFUSAL

    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_background(told, writer)
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
        click.echo(f"logs in {state['logs']}, or `zmqps logs`; `zmqps down` ends it")
        return exits.OK
    _, status = os.waitpid(pid, 0)
    if line.startswith(REFUSAL):
        raise from_wire(**json.loads(line.removeprefix(REFUSAL)))
    code = os.waitstatus_to_exitcode(status)
    raise NodeFailedError(name="the supervisor", how=f"exit code {code}", tail="  (see runs/*/logs/supervisor.log)")


def _be_background(told: dict[str, Any], writer: int) -> None:
    """Be the supervisor in the background; does not return."""
    from zmqps.processes import refuse

    code = exits.FAILED
    try:
        os.setsid()
        with open(os.devnull, "r+b") as null:
            for fd in (0, 1, 2):
                os.dup2(null.fileno(), fd)
        code = _supervise(told, None, lambda state: _report(writer, state))
    except PSError as error:
        refuse(writer, error)
    except BaseException:
        refuse(writer, PSError(f"internal error; please report it\n{traceback.format_exc()}"))
    finally:
        os._exit(code)


def _report(writer: int, state: State) -> None:
    os.write(writer, json.dumps({"pid": state.pid, "address": state.address, "logs": state.logs}).encode() + b"\n")


@click.command()
@settings.directory
@setting("--timeout", type=click.FloatRange(min=0), default=20.0, help="Seconds until the processes are killed.")
def down(directory: Path, timeout: float) -> int:
    """End the cluster that `zmqps up` has started here, and wait until all its processes are gone."""
    from zmqps.cli.state import forget_state, read_state

    state = read_state(directory)
    if state is None:
        click.echo("no cluster runs here")
        return exits.OK
    if not state.running:
        forget_state(directory)
        asyncio.run(_end_rest(state.pid, timeout))
        click.echo(f"no cluster runs here; the last one's supervisor (pid {state.pid}) had been killed")
        return exits.OK
    if not state.pid:
        raise PSError("a cluster is starting here at this very moment; try again")
    if asyncio.run(_end_supervisor(state.pid, timeout)):
        click.echo(f"ended the cluster at {state.address}")
    else:
        forget_state(directory)
        click.echo(f"killed the cluster at {state.address}: it had not ended within {timeout:g} s")
    return exits.OK


async def _end_supervisor(pid: int, timeout: float) -> bool:
    """Ask a supervisor to end; kill it and its children when it does not. Return which."""
    from zmqps.processes import children_of, gone

    ended = asyncio.ensure_future(gone(pid))
    await asyncio.sleep(0)  # it holds on to the process now, before its number can be given away
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if (await asyncio.wait([ended], timeout=timeout))[0]:
        return True
    await _kill([pid, *children_of(pid)], timeout)
    await ended
    return False


async def _end_rest(pid: int, timeout: float) -> None:
    """Wait for what a killed supervisor has left to end by itself; kill it when it does not."""
    from zmqps.processes import gone, session_of

    rest = session_of(pid)
    if rest and (await asyncio.wait([asyncio.ensure_future(gone(process)) for process in rest], timeout=timeout))[1]:
        await _kill(session_of(pid), timeout)


async def _kill(pids: Sequence[int], timeout: float) -> None:
    """Kill processes and the groups they lead, and wait until they are gone."""
    from zmqps.processes import gone

    waits = [asyncio.ensure_future(gone(pid)) for pid in pids]
    await asyncio.sleep(0)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
    if waits:
        await asyncio.wait(waits, timeout=timeout)
