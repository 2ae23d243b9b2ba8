"""When something is due at the earliest, of many that each put theirs off again and again."""

from __future__ import annotations

from collections.abc import Iterable


class Alarm:
    """The earliest of many deadlines, or a time before it: to know it exactly, all would be looked at for each event.

    Whoever has something to do earlier than before says so; whoever puts it off, or has nothing to do any more, says
    nothing. So it may ring for nobody. Then all are looked at once, and it is set anew.

    Attributes
    ----------
    due
        When it rings; None: nobody has anything to do.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due: float | None = None

    def by(self, due: float | None) -> None:
        """Ring by then at the latest; None: this one has nothing to do."""
        if due is not None and (self.due is None or due < self.due):
            self.due = due

    def rings(self, now: float) -> bool:
        """Whether it is time to look at all of them, and to `reset` it."""
        return self.due is not None and now >= self.due

    def reset(self, dues: Iterable[float | None]) -> None:
        """All were looked at, and these are their deadlines now."""
        self.due = min((due for due in dues if due is not None), default=None)

    def validate(self, dues: Iterable[float | None]) -> None:
        """Assert that it does not ring too late for anybody."""
        earliest = min((due for due in dues if due is not None), default=None)
        assert earliest is None or (self.due is not None and self.due <= earliest)
