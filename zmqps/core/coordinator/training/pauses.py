"""Why no step of a job is committed for a while, or nobody begins the next."""

from __future__ import annotations


class Pauses:
    """What steps wait for, beside those who take part.

    Attributes
    ----------
    suspended
        Why nothing is committed, in words: all shards go back to a checkpoint. Empty: they do not.
    holding
        Whether who may begin the next step is told so later, because shards are to move before.
    closed
        Shards whose leader was asked to give up its place: nothing is committed.
    """

    def __init__(self) -> None:
        self.suspended = ""
        self.holding = False
        self.closed: set[int] = set()

    def clear(self) -> None:
        """Wait for nothing."""
        self.suspended, self.holding = "", False
        self.closed.clear()

    @property
    def blocks(self) -> bool:
        """Whether nothing may be committed."""
        return bool(self.suspended or self.closed)

    def why(self, *, waits: bool) -> str:
        """Say what is waited for; ``waits``: somebody may begin the next step, but for that."""
        if self.suspended or not (self.closed or (self.holding and waits)):
            return self.suspended
        return "shards to move to other servers"
