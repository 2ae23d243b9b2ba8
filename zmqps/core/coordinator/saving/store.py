"""What the coordinator asks of the place where checkpoints are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from zmqps.core.coordinator.saving.files import Served

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


class Store(Protocol):
    """Where checkpoints are; called from other threads."""

    #: Whether servers reach the files by way of the coordinator.
    serves: bool

    def serve(self, what: str, path: str, offset: int, nbytes: int, payload: Sequence[Buffer]) -> Served:
        """Do something with a file for a server."""

    def read_at(self, path: str) -> str:
        """Return where servers read a checkpoint."""

    def begin(self, job: str, version: int) -> str:
        """Make room for a checkpoint and return where servers are to write their parts."""

    def publish(self, path: str, manifest: Mapping[str, Any]) -> tuple[str, int, int]:
        """Let what was written be the newest checkpoint of its job; return where it is, its bytes, and its version."""

    def abandon(self, path: str) -> None:
        """Remove what was written of one that failed."""
