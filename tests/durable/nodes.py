"""The nodes of a cluster as processes that tests kill and start again, each by its name."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.errors import PSError
from zmqps.launch.config import ClusterConfig
from zmqps.launch.processes import Process, all_exited, end, node_command, node_environment
from zmqps.nodes.checkpoints import CheckpointConfig
from zmqps.nodes.inquiry import inquire, run_blocking

#: Seconds that any wait may take on a busy machine.
PATIENCE = 60.0


class Nodes:
    """A coordinator and servers, which end with the context; the coordinator comes back at its address.

    Parameters
    ----------
    directory
        Where logs go, one file a life of a node.
    servers
        How many.
    checkpoints
        Where jobs are saved.
    flags
        More of the coordinator's.
    options
        Of `CoordinatorOptions`.
    """

    def __init__(
        self,
        directory: Path,
        servers: int,
        *,
        checkpoints: CheckpointConfig | None = None,
        flags: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.directory = directory
        self.address = "tcp://127.0.0.1:0"
        self.processes: dict[str, Process] = {}
        self._all: list[Process] = []
        self._flags = list(flags)
        self._options = CoordinatorOptions(servers=servers, **options)
        self._checkpoints = checkpoints or CheckpointConfig()
        try:
            self.start_coordinator()
            for number in range(servers):
                self.start_server(f"server-{number}")
            self.wait_until(lambda status: len(servers_in(status)) == servers)
        except BaseException:
            self.close()
            raise

    def _config(self) -> ClusterConfig:
        return ClusterConfig(
            options=self._options, address=self.address, kernels="numpy", checkpoints=self._checkpoints
        )

    def start_coordinator(self) -> None:
        """Start it, or start it again where it was."""
        process = self._start("coordinator", [*self._config().coordinator(), *self._flags])
        self.address = run_blocking(process.announcement())

    def start_server(self, name: str, *flags: str) -> None:
        """Start a server, for the first time or again."""
        self._start(name, [*self._config().server(0, self.address, name=name), *flags])

    def _start(self, name: str, flags: Sequence[str]) -> Process:
        life = sum(process.name == name for process in self._all)
        log = self.directory / f"{name}.{life}.log"
        with log.open("wb") as output:
            command = node_command(name.partition("-")[0], *flags)
            process = Process(name, command, stdout=output, log=log, env=node_environment(), is_node=True)
        self.processes[name] = process
        self._all.append(process)
        return process

    def kill(self, name: str) -> None:
        """End a node with SIGKILL; return when it has gone."""
        self.processes[name].kill()
        assert run_blocking(all_exited([self.processes.pop(name)], PATIENCE))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a node a signal."""
        self.processes[name].send_signal(number)

    def exit_code(self, name: str) -> int:
        """Wait until a node has ended by itself; return how."""
        process = self.processes.pop(name)
        assert run_blocking(all_exited([process], PATIENCE)), f"{name} does not end"
        return int(process.popen.returncode)

    def wait_until(self, good: Callable[[Mapping[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until the coordinator's view is as it should be; return it."""
        return dict(run_blocking(inquire(self.address, timeout=timeout, until=good)))

    def status(self) -> dict[str, Any]:
        """Return the coordinator's view."""
        return self.wait_until(lambda _: True)

    def logs(self) -> str:
        """Return what all nodes have said."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log")))

    def close(self) -> None:
        """End all."""
        run_blocking(end(self.processes.values(), signal.SIGTERM, 5.0))
        for process in self._all:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def servers_in(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the servers that are there."""
    return [member for member in status["members"] if member["role"] == "server"]


def is_whole(status: Mapping[str, Any]) -> bool:
    """Whether every shard of every job that is there has all its copies."""
    jobs = status["jobs"].values()
    return all(not job.get("replicas", {}).get("degraded") for job in jobs)


def why(error: BaseException) -> str:
    """Return the type and words of an error, for tables."""
    return f"{type(error).__name__}: {error}" if isinstance(error, PSError) else repr(error)
