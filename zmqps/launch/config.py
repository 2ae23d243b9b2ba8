"""What a cluster consists of, and the settings of each of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from zmqps.core.coordinator.members.cluster_end import GOODBYE_S
from zmqps.core.coordinator.saving.making import WAITS_S
from zmqps.core.protocol import exits
from zmqps.core.protocol.endpoints import host_of, is_loopback, is_wildcard, join
from zmqps.launch.supervision import Restarts
from zmqps.settings.cluster import ClusterSettings
from zmqps.settings.coordinator import CoordinatorSettings
from zmqps.settings.server import ServerSettings

#: How long a node may take to end when asked to. The coordinator says goodbye first.
GRACE_S = GOODBYE_S + 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(ClusterSettings):
    """What a cluster consists of.

    Parameters
    ----------
    devices
        Where servers keep their shards, in turn; none: all where ``server`` says.
    """

    devices: tuple[str, ...] = ()

    def for_coordinator(self, name: str = "coordinator", *, own_servers: bool = False) -> CoordinatorSettings:
        """Return the coordinator's settings."""
        return CoordinatorSettings.taken_from(self, name=name, own_servers=own_servers)

    def for_server(self, index: int, coordinator: str, *, bind: str = "", name: str = "") -> ServerSettings:
        """Return the settings of a server, which by default listens on the same addresses as the coordinator."""
        return ServerSettings.taken_from(
            self.server, coordinator=coordinator, address=bind or self._server_address(coordinator), index=index,
            name=name or f"server-{index}", interface=self.interface, insecure=self.insecure, keys=self.keys,
            job_secret=self.job_secret, log_level=self.log_level,
            device=self.devices[index % len(self.devices)] if self.devices else self.server.device,
        )  # fmt: skip

    @property
    def outlives_servers(self) -> bool:
        """Whether jobs continue when a server is lost: from copies of its shards, or from a checkpoint."""
        saved = self.saving.checkpoint is not None or self.saving.restore is not None
        return bool(self.replicas) or (saved and self.fallback_timeout > 0)

    @property
    def goodbye_s(self) -> float:
        """How long the coordinator may take to end when asked to: its jobs are saved first, and it says goodbye."""
        return GRACE_S + (WAITS_S if self.saving.saves_at_end else 0.0)

    def restarts_of_server(
        self, well: Container[int] = (exits.OK,), possible: Callable[[], bool] = lambda: True
    ) -> Restarts:
        """Return when a server is started again: where jobs outlive it, if it failed and another life is possible."""
        if not self.outlives_servers:
            return Restarts(0, well=well, replaces=False)
        back, copied = "lost shards go back to their last checkpoint", "it gets copies of shards that are missing"
        why = copied if self.replicas else back
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
