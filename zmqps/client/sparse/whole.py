"""A sparse table as a whole: followed as it changes, exported to a file, and loaded from one."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zmqps import checks
from zmqps.checkpoint.manifest import installed_version
from zmqps.checkpoint.rows import TableFacts
from zmqps.checkpoint.table_file import TableFile, read_table
from zmqps.client.sparse.feed import Feed
from zmqps.client.thread import refuse_in_callback
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages.rows import COUNTED
from zmqps.core.worker.operations import Exchange

if TYPE_CHECKING:
    from concurrent.futures import Future

    from zmqps.client.sparse.rows import RowRequests

#: Rows requested at a time, by default.
CHUNK_ROWS = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """The contents of a table, and counts of its ids, over all servers since each of them has it.

    Attributes
    ----------
    rows : int
        The existing rows.
    bytes : int
        Bytes that they take, with slots and index.
    hits, misses : int
        Ids read that had a row, and that had none.
    new : int
        Rows created.
    refused : int
        Rows not created for want of room.
    expired : int
        Rows removed because they were not touched for too long.
    evicted : int
        Rows evicted for others.
    waiting : int
        Touches of rows not yet admitted then.
    """

    rows: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    new: int = 0
    refused: int = 0
    expired: int = 0
    evicted: int = 0
    waiting: int = 0


class WholeTable:
    """Operations on all rows of a `zmqps.Table`."""

    name: str

    @property
    def _job_name(self) -> str:
        raise NotImplementedError

    def load(self, ids: Any, values: Any, *, step: bool = False, timeout: float | None = None) -> None:
        raise NotImplementedError

    def flush(self, *, timeout: float | None = None) -> None:
        raise NotImplementedError

    def _requests(self, timeout: float | None) -> RowRequests:
        raise NotImplementedError

    def _exchange(self, exchange: Exchange, timeout: float | None) -> Future[Any]:
        raise NotImplementedError

    def statistics(self, *, timeout: float | None = None) -> TableStatistics:
        """Ask the servers for the contents of the table, and the counts of its ids."""
        self.flush(timeout=timeout)
        while True:
            requests = self._requests(timeout)
            asked = [requests.scan(number, 0, 0) for number in range(requests.num_parts)]
            for future in [self._exchange(Exchange(pull=pull), timeout) for pull, _ in asked]:
                future.result()
            if self._requests(timeout) is requests:  # else shards were divided again meanwhile
                break
        found = {"bytes" if name == "nbytes" else name: name for name in COUNTED}
        return TableStatistics(**{name: sum(target.counters[of] for _, target in asked) for name, of in found.items()})

    def __len__(self) -> int:
        """Return the number of rows on the servers."""
        return self.statistics().rows

    def chunks(self, most: int = CHUNK_ROWS, *, timeout: float | None = None) -> Iterator[tuple[Array, Array]]:
        """Iterate over all rows, one shard after the other.

        Parameters
        ----------
        most : int
            The most rows at a time; fewer if they would take more than 64 MiB.
        timeout : float, optional
            Seconds, for each chunk.

        Yields
        ------
        ids : int64 array ``(n,)``
        rows : float32 array ``(n, dim)``
            As they are when the chunk is read. During training, each row that exists from the beginning to the end
            comes at least once; rows that are created or removed meanwhile may be missed. If servers are added or
            removed meanwhile (``zmqps scale``), all are repeated.
        """
        most = checks.whole("most", most, 1, 1 << 32)
        self.flush(timeout=timeout)
        while not (yield from self._pieces(most, timeout)):
            pass

    def _pieces(self, most: int, timeout: float | None) -> Generator[tuple[Array, Array], None, bool]:
        """Go through all shards; return whether they were the same from the first to the last."""
        requests = self._requests(timeout)
        for number in range(requests.num_parts):
            start = 0
            while True:
                refuse_in_callback()
                pull, target = requests.scan(number, start, most)
                self._exchange(Exchange(pull=pull), timeout).result()
                if self._requests(timeout) is not requests:
                    return False
                if target.ids.size:
                    yield target.ids, target.rows
                start = target.next_start
                if not start:
                    break
        return True

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        """Iterate over all rows by `chunks`."""
        return self.chunks()

    def changes(
        self,
        *,
        since: Sequence[Sequence[int]] = (),
        initial: bool = True,
        most: int = CHUNK_ROWS,
        timeout: float | None = None,
    ) -> Feed:
        """Follow the table: return a feed whose polls yield the rows that have changed, and the ids of removed ones.

        For it servers keep only the ids of removed rows, for 10 minutes after the last poll, and at most a million on
        each.

        Parameters
        ----------
        since : list, optional
            `Feed.cursor` of an earlier feed whose copy exists: continue from it.
        initial : bool
            False: leave out the present rows.
        most : int
            As for `chunks`.
        timeout : float, optional
            Seconds; without ``initial`` servers are asked for their present state.

        Returns
        -------
        Feed

        Raises
        ------
        ConfigurationError
            ``since`` is not a cursor.
        """
        feed = Feed(self._requests, self._exchange, since=since, most=most)
        if not checks.flag("initial", initial):
            feed.skip(timeout=timeout)
        return feed

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        replace: bool = False,
        most: int = CHUNK_ROWS,
        timeout: float | None = None,
    ) -> int:
        """Write all rows into one file, as they arrive: there is never more than one chunk of them here.

        A Parquet or Arrow file has columns ``id``, int64, and ``values``, a fixed-size list of float32, with a row
        group or record batch for each chunk; they need pyarrow (the extra ``arrow``). A safetensors file has
        ``<table>.ids`` and ``<table>.values``. In the metadata are table, dim, job, version and the version of zmqps.

        The table may be trained meanwhile. The file has every update up to the version, and perhaps later ones. Each
        row that exists from the beginning to the end is there once. A row that is evicted or expires, and is created
        again before the end, may be there twice: the later one last, which `load_file` takes. For a file of one moment
        export a checkpoint (``zmqps checkpoint export``).

        Parameters
        ----------
        path : str or path
            Of the new file. It is not visible before it is complete, and nothing is left of an incomplete one; but a
            killed process leaves a file whose name ends with ``.tmp``.
        format : str, optional
            ``"parquet"``, ``"arrow"`` or ``"safetensors"``; by default from the suffix: .parquet, .arrow, .feather or
            .safetensors.
        replace : bool
            Whether an existing file may be replaced.
        most : int
            The most rows in a chunk; fewer if they would take more than 64 MiB.
        timeout : float, optional
            Seconds, for each chunk; by default as `connect` says, at least 60.

        Returns
        -------
        int
            How many rows were written.

        Raises
        ------
        ConfigurationError
            The file exists, the format is unknown, or pyarrow is not installed.
        CheckpointStorageError
            The disk is full or read-only, or fails.
        DeadlineError, PeerLostError
            As for `chunks`.
        """
        refuse_in_callback()
        with TableFile(path, format=format, replace=replace) as file:
            self.flush(timeout=timeout)  # deferred gradients of this worker's cache
            for part in self.changes(most=most).poll(timeout=timeout):
                if part.reset:  # at the beginning, and if a shard went back to a checkpoint meanwhile
                    version = self.changes(initial=False, timeout=timeout).version
                    dim = self._requests(timeout).spec.dim
                    file.begin(TableFacts(self.name, dim, self._job_name, version, installed_version()))
                file.write(part.ids, part.rows)
            file.publish()
        return file.rows

    def load_file(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        most: int = CHUNK_ROWS,
        step: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Set rows to those of a file, in chunks, as `zmqps.Table.load` does.

        Parameters
        ----------
        path : str or path
            Of a file as `export` writes, or similar: ids may be of any integer type, values also lists without a fixed
            size. In a safetensors file the table may have another name if it is the only one.
        format : str, optional
            As for `export`.
        most : int
            Rows read and sent at a time.
        step : bool
            Not asynchronous: whether each chunk ends a step of this worker. In synchronous mode a worker's contribution
            to a step is limited to 1 GiB on each server.
        timeout : float, optional
            Seconds, for each chunk; by default as `connect` says, at least 60.

        Returns
        -------
        int
            The number of rows.

        Raises
        ------
        ConfigurationError
            There is no such file, or it has no such columns or arrays; or pyarrow is not installed.
        DtypeError, ShapeError
            They do not fit this table.
        CheckpointCorruptError
            It is not of that format, or cut short; earlier rows may have been set.
        TableFullError, DeadlineError, PeerLostError
            As for `zmqps.Table.push`; earlier rows have been set.
        """
        refuse_in_callback()
        most = checks.whole("most", most, 1, 1 << 32)
        dim, rows = self._requests(timeout).spec.dim, 0
        for ids, values in read_table(path, self.name, dim, format=format, most=most):
            self.load(ids, values, step=step, timeout=timeout)
            rows += ids.size
        return rows
