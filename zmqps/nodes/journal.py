"""The coordinator's journal on disk: entries by key, in SQLite; and the identity that resumes from it.

What is kept under a key takes the place of what was there, so a journal is as large as what its coordinator knows, not
as long as its life. A transaction is there as a whole or not at all. It survives the end of the process, however that
comes, as soon as `Journal.write` returns. What concerns the numbers of jobs and their shards (`LASTING`) is then on the
disk, too; of what else was written last a host that loses its power may forget some (SQLite's WAL with
``synchronous=NORMAL``), in the order in which it was written.

What is not what was written is an error, never a new journal nor an older state: `zmqps.nodes.journal_mark`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Record
from zmqps.core.protocol.plain import pack, unpack
from zmqps.errors import JournalError, ProtocolError
from zmqps.folder import Folder
from zmqps.nodes.journal_mark import MARK, NEW_MARK, Contents, Mark, Position

#: The file of a journal in its directory, and the one whose lock its coordinator holds.
FILE, LOCK = "coordinator.journal", "coordinator.lock"
#: Where the page is, of a coordinator that has one; see `zmqps.nodes.page`.
PAGE = "page.json"
#: What SQLite adds to the name of a file for its other files.
BESIDE = ("-wal", "-shm", "-journal")
#: Marks the file as a journal of zmqps, and the version of its format.
APPLICATION, VERSION = 0x7A6D7073, 6
#: First words of the keys whose records are on the disk before anything that follows is done.
LASTING = ("identity", "cluster", "spec", "copies")
#: The key of the coordinator's identity; the machine uses others.
IDENTITY = "identity"
#: Under this key is what was drawn for this journal alone.
ITSELF = ""
#: Each record carries the number of its transaction, and the checksum of the journal as of then.
TABLE = "state (key TEXT PRIMARY KEY, value BLOB NOT NULL, number INTEGER NOT NULL, digest BLOB NOT NULL)"
PUT = "INSERT OR REPLACE INTO state (key, value, number, digest) VALUES (?, ?, ?, ?)"
#: A page of the file; it has at least one.
PAGE_NBYTES = 4096
#: So much is kept of the log that SQLite writes before the file.
LOG_NBYTES = 4 << 20

log = logging.getLogger("zmqps.coordinator")


class Journal:
    """One coordinator's journal, held open and locked; a context manager.

    Parameters
    ----------
    directory
        Where it is; made for this user alone if it does not exist.

    Raises
    ------
    JournalError
        Another coordinator holds it, or it is damaged or of another version.
    UnsafeFileError
        Another user may change it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory).absolute() / FILE
        #: Why nothing is kept any more; empty while all is well.
        self.failure = ""
        self._connection: sqlite3.Connection | None = None
        self._lock = -1
        self._lasting = False  # how to write the next transaction
        place = self.path.parent
        self._folder = Folder(place.parent, place.name, make=True)
        self._mark = Mark(self._folder)
        self._contents = Contents(secrets.token_bytes(16))
        try:
            self._claim()
            self._open()
        except BaseException:
            self.close()
            raise

    def _claim(self) -> None:
        self._lock = self._folder.open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            raise JournalError(
                path=str(self.path),
                why=f"a coordinator continues from it already{f' (pid {pid})' if pid else ''}",
                advice="end that one first, or give this one another directory with --journal",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    def _open(self) -> None:
        is_new = not self._found()
        if is_new:
            self._mark.begin(None)  # from now on the files here are leftovers of an unused journal
            self._remove()
        os.close(self._folder.open(FILE, os.O_RDWR | os.O_CREAT))  # no other user may read it, whatever the umask
        with self._explained():
            self._connection = db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute(f"PRAGMA page_size={PAGE_NBYTES}")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA journal_size_limit={LOG_NBYTES}")
            if is_new:
                db.execute(f"PRAGMA application_id={APPLICATION}")
                db.execute(f"PRAGMA user_version={VERSION}")
                db.execute(f"CREATE TABLE {TABLE}")
                self._commit(db, [])
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all of it is in the file, and on the disk
            db.execute("PRAGMA synchronous=NORMAL")
        self._mark.begin(self._contents)

    def _found(self) -> bool:
        """Return whether there is a journal, which is what was written."""
        present = {name for name in _names() if os.path.exists(self.path.parent / name)}
        nbytes = self.path.stat().st_size if FILE in present else 0
        try:
            position = self._mark.read()
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if position is None and (not present or (present == {FILE} and not nbytes)):
            return False
        if position is not None and position.is_none:
            return False
        if nbytes < PAGE_NBYTES:  # SQLite would remove the log of a file without a page
            raise self._damaged(f"{FILE} has {nbytes} bytes")
        try:
            with self._explained(), self._looked_at() as db:
                self._examine(db, position)
        finally:
            for name in set(_names()) - present:
                self._folder.remove(name)
        return True

    @contextlib.contextmanager
    def _looked_at(self) -> Iterator[sqlite3.Connection]:
        """Read it without a change: what is damaged stays as it is, for a good copy of a part may yet be found."""
        self._folder.remove(FILE + "-shm")  # an index of the log, which is made again; another one would mislead
        os.close(self._folder.open(FILE, os.O_RDONLY))
        with contextlib.closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=0)) as db:
            yield db

    def _examine(self, db: sqlite3.Connection, position: Position | None) -> None:
        """Read all of it, and compare it with what it should hold."""
        (application,), (version,) = _one(db, "application_id"), _one(db, "user_version")
        if application != APPLICATION:
            raise self._unusable("it is another file", "give the coordinator another directory with --journal")
        if version != VERSION:
            raise self._unusable(
                f"it has format {version}, and this zmqps reads {VERSION}",
                "continue with the zmqps that has written it, or end that cluster and move the journal away",
            )
        if (found := _one(db, "quick_check")[0]) != "ok":
            raise self._damaged(str(found))
        if position is None:
            raise self._damaged(f"{MARK} is missing")
        contents, last = self._contents, (0, b"")
        for key, value, number, digest in db.execute("SELECT key, value, number, digest FROM state"):
            if (type(key), type(value), type(number), type(digest)) != (str, bytes, int, bytes):
                raise self._damaged("a record is invalid")
            if key == ITSELF:
                contents.cluster = value
            contents.put(key, value)
            last = max(last, (number, digest))
        contents.seal(last[0])
        try:
            lost = self._mark.judge(position, contents, last[1])
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if lost:
            log.warning(
                "the journal %s lacks its last transactions (%d), as after a loss of power: what they said is asked "
                "again of the nodes", self.path, lost,
            )  # fmt: skip

    def read(self) -> dict[str, Any]:
        """Return what is kept, by key.

        Raises
        ------
        JournalError
            It is damaged.
        """
        with self._explained():
            assert self._connection is not None
            rows = self._connection.execute("SELECT key, value FROM state").fetchall()
            try:
                return {key: unpack(value) for key, value in rows if key != ITSELF}
            except ProtocolError as error:
                raise self._damaged(f"a record cannot be read: {error}") from None

    def write(self, records: Sequence[Record]) -> None:
        """Keep records, all or none of them; what follows may be done when this returns.

        If that fails, the coordinator continues without a journal, and removes it: another life must not start from it,
        as if nothing had happened since.
        """
        if self._connection is None:
            return
        db = self._connection
        try:
            lasting = any(record.key.partition("/")[0] in LASTING for record in records)
            if lasting != self._lasting:
                self._lasting = lasting
                db.execute(f"PRAGMA synchronous={'FULL' if lasting else 'NORMAL'}")
            self._commit(db, [(record.key, None if record.data is None else pack(record.data)) for record in records])
            self._mark.set(self._contents, lasting=lasting)
        except (sqlite3.Error, OSError, MemoryError) as error:
            self._fail(error)

    def _commit(self, db: sqlite3.Connection, values: list[tuple[str, bytes | None]]) -> None:
        contents = self._contents
        if all(value is None for _, value in values):  # some record must say that this was a transaction
            values = [*values, (ITSELF, contents.cluster)]
        for key, value in values:
            contents.put(key, value)
        contents.seal(contents.number + 1)
        db.execute("BEGIN IMMEDIATE")
        for key, value in values:
            if value is None:
                db.execute("DELETE FROM state WHERE key = ?", (key,))
            else:
                db.execute(PUT, (key, value, contents.number, contents.digest))
        db.execute("COMMIT")

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        log.error(
            "the journal %s cannot be written (%s): the cluster continues without one, and ends with this coordinator",
            self.path, self.failure,
        )  # fmt: skip
        self.retire()

    def retire(self) -> None:
        """Remove it: its cluster has ended, or nothing is kept any more."""
        self._mark.retire()  # first: whenever this is cut short, the rest is known as such
        self._disconnect()
        with contextlib.suppress(OSError):
            self._remove()

    def _remove(self) -> None:
        for name in _names():
            self._folder.remove(name)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        """Let go of it; what is kept stays."""
        self._disconnect()
        self._mark.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self._folder.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what is wrong with it -----------------------------------------------------------------

    @contextlib.contextmanager
    def _explained(self) -> Any:
        try:
            yield
        except sqlite3.OperationalError as error:
            # its tables differ from ours; or, without a code, a text is invalid
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
                raise self._damaged(str(error)) from None
            advice = "see to the disk and the directory, and start the coordinator again"
            raise self._unusable(str(error), advice) from None
        except (sqlite3.Error, MemoryError, UnicodeError) as error:  # sizes and texts are what they happen to be
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> JournalError:
        advice = "put a good copy in its place; or move it away and start the cluster again, whose nodes end then"
        return self._unusable(f"it is damaged ({why[:200]})", advice)

    def _unusable(self, why: str, advice: str) -> JournalError:
        return JournalError(path=str(self.path), why=why, advice=advice)


def _names() -> tuple[str, ...]:
    return FILE, *(FILE + suffix for suffix in BESIDE)


def _one(db: sqlite3.Connection, pragma: str) -> Any:
    return db.execute(f"PRAGMA {pragma}").fetchone()


def forget_journal(directory: Path) -> None:
    """Remove the journal of a cluster that is over, and its directory if that is all there was."""
    with contextlib.suppress(FileNotFoundError), Folder(directory.parent, directory.name) as folder:
        Mark(folder).retire()
        for name in (*_names(), LOCK, PAGE, NEW_MARK, MARK):
            folder.remove(name)
    with contextlib.suppress(OSError):
        directory.rmdir()


def resumed(journal: Journal, kept: Mapping[str, Any], identity: Identity, options: CoordinatorOptions) -> Identity:
    """Return a coordinator's identity: the one in its journal, or else the one given, which is then written.

    Raises
    ------
    JournalError
        It is of another cluster, or not written by a coordinator.
    """
    known = kept.get(IDENTITY)
    facts = {
        "incarnation": identity.incarnation, "secret": identity.secret, "end_key": identity.end_key,
        "own_servers": bool(identity.server_key), "keyed": identity.keyed, "servers": options.servers,
        "job_secret": _digest(identity, identity.secret), "endpoint": identity.endpoint,
    }  # fmt: skip
    if known is None:
        if kept:
            raise JournalError(path=str(journal.path), why="it does not name its coordinator", advice="move it away")
        journal.write([Record(IDENTITY, facts)])
        return identity
    if set(known) != set(facts) or any(type(known[name]) is not type(fact) for name, fact in facts.items()):
        raise JournalError(path=str(journal.path), why="it does not name its coordinator", advice="move it away")
    differs = {
        "the number of servers": known["servers"] != options.servers,
        "whether nodes have keys": known["keyed"] != identity.keyed,
        "the job secret": not hmac.compare_digest(known["job_secret"], _digest(identity, known["secret"])),
    }
    if wrong := [what for what, is_other in differs.items() if is_other]:
        raise JournalError(
            path=str(journal.path),
            why=f"it is of another cluster: {' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not the same",
            advice="start the coordinator with the options it had, or give this one another directory with --journal",
        )
    return replace(identity, incarnation=known["incarnation"], secret=known["secret"], end_key=known["end_key"])


def _digest(identity: Identity, salt: bytes) -> bytes:
    return hashlib.blake2b(identity.job_secret, key=salt, digest_size=16).digest() if identity.job_secret else b""
