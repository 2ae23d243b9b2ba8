"""What ``zmqps launch`` runs, and the names of what it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zmqps.launch.code import Code
from zmqps.launch.config import ClusterConfig
from zmqps.launch.hosts import Place
from zmqps.launch.ssh import Shell
from zmqps.logs.lines import NAME_WIDTH
from zmqps.settings.cluster import LaunchSettings
from zmqps.settings.fields import nested


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig(LaunchSettings):
    """What ``zmqps launch`` runs; the address of its cluster does not count.

    Parameters
    ----------
    places
        What runs on each host.
    shell
        How they are reached.
    command
        What each worker runs.
    env
        Variables that the workers get.
    code
        What to copy to each host first; None: nothing.
    """

    cluster: ClusterConfig = nested(ClusterConfig)
    places: Sequence[Place]
    shell: Shell
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    code: Code | None = None

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return sum(len(place.workers) for place in self.places)

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return sum(len(place.servers) for place in self.places)

    @property
    def num_copies(self) -> int:
        """How many hosts the code is copied to."""
        return sum(place.is_used and not place.host.is_local for place in self.places)

    @property
    def width(self) -> int:
        """The length of the longest name of a process."""
        return max(NAME_WIDTH, *(len(name) for place in self.places for name in names(place)))


def names(place: Place) -> list[str]:
    """Return the names of what runs on a host: role and number, and the host's."""
    roles = ["coordinator"] * place.coordinator
    roles += [f"server-{index}" for index in place.servers] + [f"worker-{index}" for index in place.workers]
    return [f"{role}@{place.host.name}" for role in roles]
