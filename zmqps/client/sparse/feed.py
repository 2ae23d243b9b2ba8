"""Following a sparse table: what has changed since the last poll, for a copy of it elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zmqps import checks
from zmqps.client.thread import refuse_in_callback
from zmqps.core.protocol.messages.rows import CURSOR
from zmqps.core.worker.operations import Exchange
from zmqps.errors import ConfigurationError

if TYPE_CHECKING:
    from zmqps.client.sparse.rows import RowRequests
    from zmqps.core.worker.rows import ScanTarget

Array = np.ndarray[Any, np.dtype[Any]]
_NO_IDS = np.empty(0, np.int64)


class Changes(NamedTuple):
    """A part of a poll's result, to be applied in the order of its fields.

    Attributes
    ----------
    reset : bool
        Forget everything before: all rows are sent again.
    gone : int64 array ``(n,)``
        Ids whose rows were removed; some may never have been sent.
    ids : int64 array ``(m,)``
        Distinct ids.
    rows : float32 array ``(m, dim)``
        Their rows.
    """

    reset: bool
    gone: Array
    ids: Array
    rows: Array


class Feed:
    """The changes of a sparse table; made by `zmqps.Table.changes`.

    Each poll goes through the shards, one after the other. After it, a copy that has applied all of it has each update
    up to `version`, and some of those made meanwhile; the next poll brings the rest. If nothing changes during a poll,
    the copy equals the table.

    Parameters
    ----------
    requests
        Returns the transfers of the table: ``requests(timeout)``.
    exchange
        Starts one: ``exchange(operation, timeout)``.
    since, most
        As for `zmqps.Table.changes`.
    """

    def __init__(
        self,
        requests: Callable[[float | None], RowRequests],
        exchange: Callable[[Exchange, float | None], Future[Any]],
        *,
        since: Sequence[Sequence[int]] = (),
        most: int,
    ) -> None:
        self._requests = requests
        self._exchange = exchange
        self._most = checks.whole("most", most, 1, 1 << 32)
        self._cursors = cursors(since)  # by the buckets of a shard
        self._anew = not self._cursors  # all rows will be sent, or are being sent

    @property
    def cursor(self) -> list[list[int]]:
        """The state of the copy after a poll that was read to its end; plain numbers.

        Save it with the copy, and continue from it by ``table.changes(since=cursor)``. Empty while all rows are sent.
        """
        return [] if self._anew else [[*buckets, *cursor] for buckets, cursor in self._cursors.items()]

    @property
    def version(self) -> int:
        """Every update up to this version is in the copy: steps, or messages of rows that each shard has applied."""
        at = CURSOR.index("version")
        return 0 if self._anew else min([cursor[at] for cursor in self._cursors.values()], default=0)

    def skip(self, *, timeout: float | None = None) -> None:
        """Leave out the present rows, and all changes so far."""
        refuse_in_callback()
        requests = self._requests(timeout)
        self._cursors = {
            buckets: self._ask(requests, number, 0, 0, _NOWHERE, timeout).cursor
            for number, buckets in enumerate(_buckets(requests))
        }
        self._anew = False

    def poll(self, *, timeout: float | None = None) -> Iterator[Changes]:
        """Yield what has changed since the last poll, in parts; nothing if nothing has.

        The first poll yields all rows, unless `Table.changes` was called without them. A poll that was not read to its
        end is repeated by the next. All is repeated, with a reset, if a shard does not know what has changed: it is on
        another server, went back to a checkpoint, or more rows were removed than it remembers.

        Parameters
        ----------
        timeout : float, optional
            Seconds, for each part; by default as `connect` says, at least 60.

        Yields
        ------
        Changes
            Its arrays are not shared.

        Raises
        ------
        DeadlineError, PeerLostError
            The next poll continues where this one began.
        """
        while not (yield from self._pass(timeout)):
            self._anew = True

    def __iter__(self) -> Iterator[Changes]:
        """Run one poll."""
        return self.poll()

    def _pass(self, timeout: float | None) -> Generator[Changes, None, bool]:
        """Go through all shards; return whether the result is reliable."""
        requests = self._requests(timeout)
        parts = _buckets(requests)
        if self._anew or self._cursors.keys() != set(parts):
            self._anew = True
            self._cursors = {}
            yield Changes(True, _NO_IDS, _NO_IDS, np.empty((0, requests.spec.dim), np.float32))
        cursors = {}
        for number, buckets in enumerate(parts):
            found = yield from self._shard(requests, number, self._cursors.get(buckets, _NOWHERE), timeout)
            if found is None or self._requests(timeout) is not requests:
                return False
            cursors[buckets] = found
        self._cursors, self._anew = cursors, False  # not before: a poll that was not read to its end is repeated
        return True

    def _shard(
        self, requests: RowRequests, number: int, since: tuple[int, ...], timeout: float | None
    ) -> Generator[Changes, None, tuple[int, ...] | None]:
        """Yield a shard's changes since a cursor; return the next cursor, or None if it does not know."""
        begun: tuple[int, ...] | None = None
        start, anew = 0, since == _NOWHERE
        while True:
            refuse_in_callback()
            target = self._ask(requests, number, start, self._most, since, timeout)
            if target.counters["reset"] and (begun is not None or not anew):
                return None
            if begun is None:
                begun = target.cursor
                since = (begun[0], *_NOWHERE[1:]) if anew else since
            if target.ids.size or target.gone.size:
                yield Changes(False, target.gone, target.ids, target.rows)
            start = target.next_start
            if not start:
                return begun

    def _ask(
        self, requests: RowRequests, number: int, start: int, most: int, since: tuple[int, ...], timeout: float | None
    ) -> ScanTarget:
        pull, target = requests.scan(number, start, most, since)
        self._exchange(Exchange(pull=pull), timeout).result()
        return target


#: The cursor of a new follower: of no copy of any shard.
_NOWHERE = (0,) * len(CURSOR)


def _buckets(requests: RowRequests) -> list[tuple[int, int]]:
    """Return the buckets of each shard."""
    return [(slice_.start, slice_.stop) for slice_ in requests.parts.slices]


def cursors(plain: Sequence[Sequence[int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the cursors in a value of `Feed.cursor`, by the buckets of a shard.

    Raises
    ------
    ConfigurationError
        It is not such a value.
    """
    """Return the cursors in a value of `Feed.cursor`."""
    found = {}
    try:
        for row in plain:
            start, stop, *cursor = [checks.whole("a number", number, 0, (1 << 64) - 1) for number in row]
            if len(cursor) != len(CURSOR):
                raise ConfigurationError("too many numbers, or too few")
            found[start, stop] = tuple(cursor)
    except (ConfigurationError, TypeError, ValueError) as error:
        got = f"{checks.shown(plain):.80}"
        raise ConfigurationError(f"since is what the cursor of an earlier feed was; got {got}") from error
    return found
