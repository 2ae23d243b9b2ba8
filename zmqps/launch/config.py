"""What a cluster consists of, and the flags that its nodes are started with."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path

from zmqps.core.coordinator.members.cluster_end import GOODBYE_S
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.saving.wishes import WAITS_S
from zmqps.core.protocol import exits
from zmqps.core.protocol.endpoints import host_of, is_loopback, is_wildcard, join
from zmqps.launch.supervision import RESTARTS, Restarts
from zmqps.nodes.checkpoints import CheckpointConfig
from zmqps.nodes.server import IO_THREADS

#: How long a node may take to end when asked to. The coordinator says goodbye first.
GRACE_S = GOODBYE_S + 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What a cluster on this host consists of.

    Parameters
    ----------
    options
        The coordinator's.
    address
        Where the coordinator is reached; port 0 takes a free one. Empty: at its own default.
    interface
        The network interface that all listen on.
    ports
        The range whose first free ports the servers take.
    kernels
        ``numba`` or ``numpy``, for the servers.
    insecure
        Allow binding beyond loopback.
    log_level
        debug, info, warning or error.
    apply_threads
        How many threads update one slice, for the servers.
    devices
        Where servers keep their shards: ``cpu``, ``cuda``, ``cuda:1`` or ``auto``, in turn.
    memory_nbytes
        The most that the shards of all jobs may take on a server; None: what is free.
    job_secret
        File with the secret required to join; None: no secret.
    keys
        The directory with the cluster's keys; None: it has none.
    io_threads
        How many threads of each server read and write sockets.
    checkpoints
        Where jobs are saved, when, and what they begin from.
    journal
        The directory of the coordinator's journal, from which it goes on if it is started again; None: it keeps none.
    restart_servers
        How often each server that fails is started again, where jobs outlive it.
    values
        Where the coordinator writes what scripts log, as ``--values`` says it.
    page, page_token
        Where the coordinator's page is, with metrics, and the file with what its clients have to show; empty: it has
        none.
    """

    options: CoordinatorOptions = field(default_factory=CoordinatorOptions)
    address: str = "tcp://127.0.0.1:0"
    interface: str = ""
    ports: str = ""
    kernels: str = "numba"
    insecure: bool = False
    log_level: str = "info"
    apply_threads: int = 1
    devices: tuple[str, ...] = ("cpu",)
    memory_nbytes: int | None = None
    job_secret: Path | None = None
    keys: Path | None = None
    io_threads: int = IO_THREADS
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    journal: Path | None = None
    restart_servers: int = RESTARTS
    values: tuple[str, ...] = ()
    page: str = ""
    page_token: Path | None = None

    def coordinator(self, name: str = "coordinator") -> list[str]:
        """Return the flags of the coordinator."""
        o = self.options
        flags = [
            f"--address={self.address}", f"--servers={o.servers}", f"--heartbeat-interval={o.heartbeat_interval}",
            f"--heartbeat-timeout={o.heartbeat_timeout}", f"--lease={o.lease}", f"--idle-timeout={o.idle_timeout}",
            f"--slice-size={o.slice_nbytes}", *([f"--workers={o.workers}"] if o.workers is not None else []),
            *["--once"] * o.once, *([f"--replicas={o.replicas}"] if o.replicas else []), *self._saving(),
            f"--fallback-timeout={o.fallback_timeout}",
            *([f"--journal={self.journal.absolute()}"] if self.journal is not None else []),
            *([f"--patience={o.patience}"] if o.patience else []),
            *(f"--values={_placed(text)}" for text in self.values),
            *([f"--page={self.page}"] if self.page else []),
            *([f"--page-token={self.page_token.absolute()}"] if self.page_token is not None else []),
        ]  # fmt: skip
        return [*flags, *self._common(name)]

    def server(self, index: int, coordinator: str, *, bind: str = "", name: str = "") -> list[str]:
        """Return the flags of a server, which by default listens on the same addresses as the coordinator."""
        flags = [
            f"--coordinator={coordinator}", f"--address={bind or self._server_address(coordinator)}",
            f"--kernels={self.kernels}", f"--apply-threads={self.apply_threads}",
            f"--device={self.devices[index % len(self.devices)]}", f"--io-threads={self.io_threads}",
            *([f"--memory={self.memory_nbytes}"] if self.memory_nbytes is not None else []),
            *([f"--ports={self.ports}"] if self.ports else []),
        ]  # fmt: skip
        return [*flags, f"--index={index}", *self._common(name or f"server-{index}")]

    def _saving(self) -> list[str]:
        c = self.checkpoints
        flags = [f"--checkpoint={_absolute(c.directory)}"] if c.directory is not None else []
        flags += [f"--checkpoint-every={c.every}"] if c.every else []
        flags += [f"--checkpoint-full-every={c.full_every}"] if c.full_every > 1 else []
        flags += ["--checkpoint-at-end=no"] * (not c.at_end)
        flags += [f"--restore={_absolute(c.restore)}"] if c.restore is not None else []
        flags += [f"--restore-name={name}={there}" for name, there in c.restore_names.items()]
        flags += [f"--keep={c.keep}", f"--checkpoint-via={c.via}"]
        return [*flags, *["--restore-values-only"] * (not c.restore_optimizer)]

    @property
    def outlives_servers(self) -> bool:
        """Whether jobs go on when a server is lost: from copies of its shards, or from a checkpoint."""
        saved = self.checkpoints.directory is not None or self.checkpoints.restore is not None
        return bool(self.options.replicas) or (saved and self.options.fallback_timeout > 0)

    @property
    def goodbye_s(self) -> float:
        """How long the coordinator may take to end when asked to: its jobs are saved first, and it says goodbye."""
        return GRACE_S + (WAITS_S if self.checkpoints.saves_at_end else 0.0)

    def restarts_of_server(
        self, well: Container[int] = (exits.OK,), possible: Callable[[], bool] = lambda: True
    ) -> Restarts:
        """Return when a server is started again: where jobs outlive it, if it failed and another life is possible."""
        if not self.outlives_servers:
            return Restarts(0, well=well, replaces=False)
        back, copied = "lost shards go back to their last checkpoint", "it gets copies of shards that are missing"
        why = copied if self.options.replicas else back
        return Restarts(self.restart_servers, well=well, why=why, replaces=False, possible=possible)

    @property
    def is_local(self) -> bool:
        """Whether other hosts cannot reach the coordinator, so that all its servers are started here."""
        if self.interface:
            return False
        return not self.address.startswith("tcp://") or is_loopback(host_of(self.address))

    def _server_address(self, coordinator: str) -> str:
        if self.interface:
            return ""
        if is_wildcard(host_of(self.address)):
            return join(host_of(self.address), 0)
        return join(host_of(coordinator) or "127.0.0.1", 0)

    def _common(self, name: str) -> list[str]:
        switches = ["--insecure"] * self.insecure
        switches += [f"--interface={self.interface}"] if self.interface else []
        switches += [f"--job-secret={self.job_secret}"] if self.job_secret is not None else []
        switches += [f"--keys={self.keys.absolute()}"] if self.keys is not None else []
        return [f"--name={name}", f"--log-level={self.log_level}", *switches]


def _absolute(path: str) -> str:
    """Return a path that means the same wherever a node is started; an address stays as it is."""
    return path if "://" in path else str(Path(path).absolute())


def _placed(values: str) -> str:
    """Return what ``--values`` says, where it names a file in a form that means the same wherever a node is started."""
    kind, _, place = values.partition(":")
    return f"{kind}:{_absolute(place)}" if kind in ("jsonl", "tensorboard") and place else values
