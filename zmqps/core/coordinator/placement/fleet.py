"""The servers of a cluster: how many it is to have, and which of them stay."""

from __future__ import annotations

from zmqps.core.coordinator.members.membership import MemberInfo, Roster


class Fleet(Roster):
    """The servers.

    Parameters
    ----------
    wanted
        How many make the cluster.

    Attributes
    ----------
    wanted
        How many a new job is placed on: less, once some have been drained and nobody has come instead.
    most
        How many a new job is placed on at most.
    """

    def __init__(self, wanted: int) -> None:
        super().__init__(lambda: self.most)
        self.wanted = self.most = wanted

    @property
    def staying(self) -> list[MemberInfo]:
        """Those that are not about to go."""
        return [server for server in self if not server.leaving]

    def joined(self) -> None:
        """One more is here, or stays after all."""
        self.wanted = max(self.wanted, min(self.most, len(self.staying)))

    def shrink(self) -> None:
        """One is to go."""
        self.wanted = max(1, min(self.wanted, len(self.staying)))
