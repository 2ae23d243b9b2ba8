"""What a follower writes: its copy, with the cursor from which the next process continues, and files of changes.

``rows-<name>.safetensors`` has the rows, `STATE` names that file and has the cursor. It is replaced once the rows are
safe, so whatever interrupts that leaves the copy of before.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from zmqps.checkpoint.manifest import installed_version
from zmqps.checkpoint.rows import TableFacts
from zmqps.checkpoint.storage import naming_the_disk
from zmqps.checkpoint.table_file import ChangesFile, TableFile, read_table
from zmqps.client.sparse.feed import cursors
from zmqps.core.job.tables import TableSpec
from zmqps.errors import PSError
from zmqps.files import TEXT_NBYTES, create, read_file
from zmqps.follow.copies import TableCopy

STATE = "follower.json"
CHUNK_ROWS = 65536
_CHANGES = re.compile(r"changes-(\d{9,})(?:-whole)?\.parquet")

log = logging.getLogger("zmqps.follow")


class SavedCopy:
    """The directory of one follower's copy.

    Parameters
    ----------
    directory
        It; made if it is not there.
    job, spec
        The table.
    """

    def __init__(self, directory: Path, job: str, spec: TableSpec) -> None:
        self._directory = directory
        self._job = job
        self._about: dict[str, Any] = {"job": job, "table": json.loads(json.dumps(spec.to_wire()))}
        self._spec = spec
        make_directory(directory)

    def save(self, copy: TableCopy, cursor: list[list[int]], version: int) -> None:
        """Write a copy, which must not change meanwhile.

        Raises
        ------
        CheckpointStorageError
            The disk is full, or cannot be written to.
        """
        name = f"rows-{secrets.token_hex(8)}.safetensors"  # so that a cursor is never one of other rows
        with TableFile(self._directory / name) as file:
            file.begin(TableFacts(self._spec.name, self._spec.dim, self._job, version, installed_version()))
            start = 0
            while True:
                ids, rows, start = copy.rows_from(start, CHUNK_ROWS)
                file.write(ids, rows)
                if not start:
                    break
            file.publish()
        with naming_the_disk(str(self._directory)):
            self._replace({**self._about, "rows": name, "cursor": cursor, "version": version})
        for old in self._directory.glob("rows-*.safetensors*"):  # also what an earlier process has not completed
            if old.name != name:
                with suppress(OSError):
                    old.unlink()

    def load(self, copy: TableCopy) -> tuple[list[list[int]], int] | None:
        """Fill an empty copy; return its cursor and version, or None: there is no usable one."""
        try:
            state = _state(self._directory)
            if {name: state[name] for name in self._about} != self._about:
                log.warning("%s has a copy of another table: all rows are read again", self._directory)
                return None
            name, cursor, version = str(state["rows"]), state["cursor"], int(state["version"])
            cursors(cursor)
            for ids, rows in read_table(self._directory / Path(name).name, self._spec.name, self._spec.dim):
                copy.change(ids[:0], ids, rows)
        except FileNotFoundError:
            return None
        except (PSError, OSError, ValueError, TypeError, KeyError) as error:
            log.warning("the copy in %s cannot be read, so all rows are read again: %s", self._directory, error)
            return None
        return cursor, version

    def _replace(self, state: dict[str, Any]) -> None:
        unfinished = self._directory / f"{STATE}.tmp"
        unfinished.unlink(missing_ok=True)
        with open(create(unfinished), "wb") as file:
            file.write(json.dumps(state).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self._directory / STATE)


def saved_table(directory: Path, job: str, name: str) -> TableSpec | None:
    """Return the table of the copy in a directory, if that is of this job and has this name."""
    with suppress(PSError, OSError, ValueError, TypeError, KeyError):
        state = _state(directory)
        spec = TableSpec.from_wire(state["table"])
        return spec if state["job"] == job and spec.name == name else None
    return None


def _state(directory: Path) -> Any:
    return json.loads(read_file(directory / STATE, TEXT_NBYTES))


def make_directory(directory: Path) -> None:
    """Make a directory if it is not there.

    Raises
    ------
    CheckpointStorageError
        It cannot be made.
    """
    with naming_the_disk(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)


def last_changes(directory: Path) -> int:
    """Return the number of the last file of changes in a directory; 0: there is none."""
    with naming_the_disk(str(directory), "read"):
        names = [_CHANGES.fullmatch(name) for name in os.listdir(directory)]
    return max((int(found[1]) for found in names if found), default=0)


def begin_changes(directory: Path, job: str, spec: TableSpec, *, whole: bool) -> ChangesFile:
    """Begin the next file of changes in a directory: ``changes-<number>.parquet``, or ``…-whole``.

    Parameters
    ----------
    directory
        Made if it is not there.
    job, spec
        The table.
    whole
        Whether it has all rows: what came before does not matter.

    Raises
    ------
    ConfigurationError
        pyarrow is not installed.
    CheckpointStorageError
        The directory cannot be written to.
    """
    make_directory(directory)
    for unfinished in directory.glob("changes-*.parquet.*.tmp"):  # by an earlier process
        with suppress(OSError):
            unfinished.unlink()
    number = last_changes(directory) + 1
    file = ChangesFile(directory / f"changes-{number:09}{'-whole' if whole else ''}.parquet")
    file.begin(TableFacts(spec.name, spec.dim, job, 0, installed_version()))
    return file
