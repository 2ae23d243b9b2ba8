"""A sparse table as a whole: followed as it changes, written into a file, and read from one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zmqps import checks
from zmqps.client.feed import Feed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from zmqps.client.rows import RowRequests
    from zmqps.core.worker.operations import Exchange

#: Rows that are asked for at a time, by default.
CHUNK_ROWS = 65536


class WholeTable:
    """What is done with all rows of a `zmqps.Table`."""

    name: str

    def _requests(self, timeout: float | None) -> RowRequests:
        raise NotImplementedError

    def _exchange(self, exchange: Exchange, timeout: float | None) -> Future[Any]:
        raise NotImplementedError

    def changes(
        self,
        *,
        since: Sequence[Sequence[int]] = (),
        initial: bool = True,
        most: int = CHUNK_ROWS,
        timeout: float | None = None,
    ) -> Feed:
        """Follow the table: return what yields, with each poll, the rows that have changed, and which have gone.

        Servers keep nothing for it but the ids of rows that have gone, for 10 minutes after the last poll, and at most
        a million on each.

        Parameters
        ----------
        since : list, optional
            `Feed.cursor` of an earlier feed, whose copy is there: go on from it.
        initial : bool
            False: leave out what is there now.
        most : int
            As for `chunks`.
        timeout : float, optional
            Seconds; without ``initial`` servers are asked where they are.

        Returns
        -------
        Feed

        Raises
        ------
        ConfigurationError
            That is no cursor.
        """
        feed = Feed(self._requests, self._exchange, since=since, most=most)
        if not checks.flag("initial", initial):
            feed.skip(timeout=timeout)
        return feed
