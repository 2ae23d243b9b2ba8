"""The coordinator's journal on disk: what it keeps, by key, in SQLite; and who goes on from it.

What is kept under a key takes the place of what was there, so a journal is as large as what its coordinator knows, not
as long as its life. A transaction is there as a whole or not at all. It survives the end of the process, however that
comes, as soon as `Journal.write` returns. What concerns the numbers of jobs and their shards (`LASTING`) is then on the
disk, too; of what else was written last a host that loses its power may forget some (SQLite's WAL with
``synchronous=NORMAL``), in the order in which it was written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Record
from zmqps.core.protocol.plain import pack, unpack
from zmqps.errors import JournalError, ProtocolError
from zmqps.nodes.files import Folder

#: The file of a journal in its directory, and the one whose lock its coordinator holds.
FILE, LOCK = "coordinator.journal", "coordinator.lock"
#: Where the page is, of a coordinator that has one; see `zmqps.nodes.page`.
PAGE = "page.json"
#: What SQLite adds to the name of a file for those beside it.
BESIDE = ("-wal", "-shm", "-journal")
#: By which the file is known as one of ours, and the form of what is in it.
APPLICATION, VERSION = 0x7A6D7073, 4
#: First words of the keys whose records are on the disk before anything that follows is done.
LASTING = ("cluster", "spec", "copies")
#: Under this key is who the coordinator is; the machine uses others.
IDENTITY = "identity"
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
        self._lasting = False  # how the next transaction is to be written
        place = self.path.parent
        self._folder = Folder(place.parent, place.name, make=True)
        try:
            self._claim()
            os.close(self._folder.open(FILE, os.O_RDWR | os.O_CREAT))  # nobody else may read it, whatever the umask
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
                why=f"a coordinator goes on from it already{f' (pid {pid})' if pid else ''}",
                advice="end that one first, or give this one another directory with --journal",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    def _open(self) -> None:
        with self._explained():
            self._connection = db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            (application,), (version,) = db.execute("PRAGMA application_id").fetchone(), _one(db, "user_version")
            (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if (tables or application) and application != APPLICATION:
                raise self._unusable("it is another file", "give the coordinator another directory with --journal")
            if tables and version != VERSION:
                raise self._unusable(
                    f"it has format {version}, and this zmqps reads {VERSION}",
                    "go on with the zmqps that has written it, or end that cluster and move the journal away",
                )
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(f"PRAGMA journal_size_limit={LOG_NBYTES}")
            if not tables:
                db.execute(f"PRAGMA application_id={APPLICATION}")
                db.execute(f"PRAGMA user_version={VERSION}")
                db.execute("CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
            elif (found := _one(db, "quick_check")[0]) != "ok":
                raise self._damaged(str(found))

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
                return {key: unpack(value) for key, value in rows}
            except ProtocolError as error:
                raise self._damaged(f"a record cannot be read: {error}") from None

    def write(self, records: Sequence[Record]) -> None:
        """Keep records, all or none of them; what follows may be done when this returns.

        Where that fails the coordinator goes on without a journal, and leaves none behind from which another life could
        go on as if nothing had happened since.
        """
        if self._connection is None:
            return
        db = self._connection
        try:
            lasting = any(record.key.partition("/")[0] in LASTING for record in records)
            if lasting != self._lasting:
                self._lasting = lasting
                db.execute(f"PRAGMA synchronous={'FULL' if lasting else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            for record in records:
                if record.data is None:
                    db.execute("DELETE FROM state WHERE key = ?", (record.key,))
                else:
                    value = pack(record.data)
                    db.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (record.key, value))
            db.execute("COMMIT")
        except (sqlite3.Error, OSError, MemoryError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        log.error(
            "the journal %s cannot be written (%s): the cluster goes on without one, and ends with this coordinator",
            self.path, self.failure,
        )  # fmt: skip
        self.retire()

    def retire(self) -> None:
        """Remove it: its cluster has ended, or nothing is kept any more."""
        self._disconnect()
        for name in (FILE, *(FILE + suffix for suffix in BESIDE)):
            with contextlib.suppress(OSError):
                self._folder.remove(name)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        """Let go of it; what is kept stays."""
        self._disconnect()
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
            advice = "see to the disk and the directory, and start the coordinator again"
            raise self._unusable(str(error), advice) from None
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> JournalError:
        advice = "put a good copy in its place; or move it away and start the cluster again, whose nodes end then"
        return self._unusable(f"it is damaged ({why[:200]})", advice)

    def _unusable(self, why: str, advice: str) -> JournalError:
        return JournalError(path=str(self.path), why=why, advice=advice)


def _one(db: sqlite3.Connection, pragma: str) -> Any:
    return db.execute(f"PRAGMA {pragma}").fetchone()


def forget_journal(directory: Path) -> None:
    """Remove the journal of a cluster that is over, and its directory if that is all there was."""
    with contextlib.suppress(FileNotFoundError), Folder(directory.parent, directory.name) as folder:
        for name in (FILE, LOCK, PAGE, *(FILE + suffix for suffix in BESIDE)):
            folder.remove(name)
    with contextlib.suppress(OSError):
        directory.rmdir()


def resumed(journal: Journal, kept: Mapping[str, Any], identity: Identity, options: CoordinatorOptions) -> Identity:
    """Return who a coordinator is: whoever has written its journal, or the one given, which is written then.

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
            raise JournalError(path=str(journal.path), why="it does not say whose it is", advice="move it away")
        journal.write([Record(IDENTITY, facts)])
        return identity
    if set(known) != set(facts) or any(type(known[name]) is not type(fact) for name, fact in facts.items()):
        raise JournalError(path=str(journal.path), why="it does not say whose it is", advice="move it away")
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
