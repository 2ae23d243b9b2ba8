"""When something is due at the earliest, of many that each put theirs off again and again."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf


class Alarm:
    """The earliest of many deadlines, or a time before it: to know it exactly, all would be looked at for each event.

    What has something to do earlier than before sets `due` to that (on the way of every step without a call); what puts
    it off, or has nothing to do any more, does nothing. So it may ring for nobody: then all are looked at once, and it
    is set anew. Infinite: nothing is to be done.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = inf

    def by(self, due: float | None) -> None:
        """Ring by then at the latest; None: this one has nothing to do."""
        if due is not None:
            self.due = min(self.due, due)

    def reset(self, dues: Iterable[float | None]) -> None:
        """All were looked at, and these are their deadlines now."""
        self.due = min((due for due in dues if due is not None), default=inf)

    def validate(self, dues: Iterable[float | None]) -> None:
        """Assert that it does not ring too late for anybody."""
        assert all([due is None or self.due <= due for due in dues])
