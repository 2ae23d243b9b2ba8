"""What shards were when they were saved, for saves that build upon those."""

from __future__ import annotations

from collections.abc import Sequence

from zmqps.core.server.parts import Mark


class Marks:
    """The marks of a server's shards, for each save one of each part.

    Of each shard two saves are remembered: the one that is built upon, and the one that may be built upon next.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[int, Sequence[Mark]]] = {}  # by epoch, by number of the save

    def base(self, epoch: int, number: int) -> Sequence[Mark] | None:
        """Return the marks of a save; None: nothing is known of it."""
        return self._of.get(epoch, {}).get(number)

    def note(self, epoch: int, number: int, base: int, marks: Sequence[Mark]) -> None:
        """A save of a shard has begun: it may be built upon once the coordinator says so, until then ``base``."""
        kept = self._of.pop(epoch, {})
        for old in [old for old in kept if old != base]:
            _drop(kept.pop(old))
        self._of[epoch] = {**kept, number: marks}

    def drop(self, epoch: int) -> None:
        """A shard is not here any more."""
        for marks in self._of.pop(epoch, {}).values():
            _drop(marks)

    def validate(self) -> None:
        """Assert that no more is kept than may be built upon."""
        for saves in self._of.values():
            assert len(saves) <= 2
            for mark in (mark for marks in saves.values() for mark in marks):
                mark.validate()


def _drop(marks: Sequence[Mark]) -> None:
    for mark in marks:
        mark.drop()
