"""How a copy of a table follows it, poll by poll, and what is written to files; in a separate thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from zmqps.checkpoint.table_file import ChangesFile
from zmqps.client.sparse.feed import Feed
from zmqps.core.job.tables import TableSpec
from zmqps.errors import CheckpointStorageError
from zmqps.follow.copies import TableCopy
from zmqps.follow.machine import Caught, Changed
from zmqps.follow.saved import SavedCopy, begin_changes, last_changes
from zmqps.settings.follower import FollowerSettings

log = logging.getLogger("zmqps.follow")


class Hand(Protocol):
    """Passes an event to the machine."""

    def __call__(self, event: Changed | Caught) -> None:
        """Return when the machine has taken it."""


class FollowedTable:
    """A table, and the copy that the machine answers from.

    Parameters
    ----------
    settings
        The follower's.
    spec
        The table.
    hand
        Passes an event to the machine.
    seed
        A secret number, for copies.
    clock
        Returns seconds.
    """

    def __init__(
        self, settings: FollowerSettings, spec: TableSpec, hand: Hand, seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.spec = spec
        #: From where to continue: none, at the beginning.
        self.cursor: list[list[int]] = []
        self.version = 0
        self._settings = settings
        self._hand = hand
        self._seed = seed
        self._clock = clock
        self._copy: TableCopy | None = None
        self._disk = None if settings.save is None else SavedCopy(settings.save, settings.job, spec)
        self._saved_cursor: list[list[int]] | None = None
        self._saved_at: float | None = None

    def load(self) -> None:
        """Continue from the copy of an earlier follower, if there is one."""
        if self._disk is None or not self._changes_continue():
            return
        copy = self._new_copy()
        if (found := self._disk.load(copy)) is not None:
            self.cursor, self.version = found
            self._copy, self._saved_cursor, self._saved_at = copy, self.cursor, self._clock()
            self._hand(Caught(copy, self.version))
            log.info("continuing from %d rows of version %d", len(copy), self.version)

    def poll(self, feed: Feed, timeout: float) -> None:
        """Bring the copy up to date.

        Raises
        ------
        PSError
            The cluster does not answer. Readers still have the copy; the next poll repeats this one.
        """
        settings, fresh = self._settings, None
        with ExitStack() as stack:
            file: ChangesFile | None = None
            for reset, gone, ids, rows in feed.poll(timeout=timeout):
                if settings.changes is not None and (reset or file is None):
                    file = stack.enter_context(begin_changes(settings.changes, settings.job, self.spec, whole=reset))
                if reset:  # readers have the old one until this is complete
                    fresh = self._new_copy()
                elif fresh is not None:
                    fresh.change(gone, ids, rows)
                else:
                    self._hand(Changed(gone, ids, rows))
                if file is not None:
                    file.write(gone, ids, rows)
            if file is not None:
                file.publish_at(feed.version)
        copy = self._copy if fresh is None else fresh
        assert copy is not None, "the first poll resets"
        self._hand(Caught(copy, feed.version))
        if self._copy is None:
            log.info("following %r: %d rows of version %d", self.spec.name, len(copy), feed.version)
        self._copy, self.cursor, self.version = copy, feed.cursor, feed.version

    def save(self) -> None:
        """Write the copy, if that is due. It does not change meanwhile: only this thread changes it."""
        if self._disk is None or self._copy is None or self.cursor == self._saved_cursor:
            return
        if self._saved_at is not None and self._clock() < self._saved_at + self._settings.save_every:
            return
        self._saved_at = self._clock()
        try:
            self._disk.save(self._copy, self.cursor, self.version)
            self._saved_cursor = self.cursor
        except CheckpointStorageError as error:  # tried again when it is due
            log.error("the copy cannot be saved: %s", error, extra={"error": error.number})

    def _changes_continue(self) -> bool:
        """Whether the next file of changes may follow those that are there: the first has all rows."""
        directory = self._settings.changes
        return directory is None or (directory.exists() and last_changes(directory) > 0)

    def _new_copy(self) -> TableCopy:
        return TableCopy(self.spec, self._settings.rows, self._seed)
