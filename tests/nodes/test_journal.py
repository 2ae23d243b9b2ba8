"""The journal on disk: whole transactions, one coordinator at a time, and never begun anew by itself."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Record
from zmqps.errors import JournalError
from zmqps.nodes.journal import BESIDE, FILE, IDENTITY, LOCK, Journal, forget_journal, resumed

OPTIONS = CoordinatorOptions(servers=2)


def identity(**changes: object) -> Identity:
    one = Identity(
        role="coordinator", incarnation=b"c" * 16, name="c", host="h", pid=1, secret=b"s" * 16, end_key=b"e" * 16
    )  # fmt: skip
    return replace(one, **changes)  # type: ignore[arg-type]


def test_what_was_written_is_there_and_what_took_its_place(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        assert journal.read() == {}
        journal.write([Record("step/a", [1, b"who"]), Record("step/b", {"x": 1.5, "y": None})])
        journal.write([Record("step/a", [2]), Record("step/b", None), Record("never", None)])
    with Journal(tmp_path / "j") as journal:
        assert journal.read() == {"step/a": [2]}


def test_it_is_as_large_as_what_it_holds_not_as_long_as_its_life(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for step in range(20_000):
            journal.write([Record("step/default", [step, bytes(500)])])
        size = sum(file.stat().st_size for file in (tmp_path / "j").iterdir())
    assert size < 8 << 20


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        with Journal(tmp_path / "j") as journal:
            journal.write([Record("a", 1)])
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "j").iterdir()}
    finally:
        os.umask(umask)
    assert {FILE, LOCK} <= set(modes)
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o700


def test_a_second_coordinator_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"):
        with pytest.raises(JournalError, match=rf"continues from it already \(pid {os.getpid()}\); end that one first"):
            Journal(tmp_path / "j")
    Journal(tmp_path / "j").close()


def test_a_process_that_was_killed_leaves_all_that_was_written(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from zmqps.core.protocol.events import Record
from zmqps.nodes.journal import Journal
journal = Journal(sys.argv[1])
for step in range(100):
    journal.write([Record("step", step), Record("twice", step)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "j"]).returncode < 0
    with Journal(tmp_path / "j") as journal:
        assert journal.read() == {"step": 99, "twice": 99}


@pytest.mark.parametrize("damage", ["header", "middle", "end"])
def test_a_damaged_one_is_refused_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.write([Record(f"key/{n}", bytes(range(256)) * 20) for n in range(100)])
    path = tmp_path / "j" / FILE
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[:100] = bytes(100)
    elif damage == "middle":
        data[4096 : len(data) // 2] = b"\xa5" * (len(data) // 2 - 4096)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"put a good copy in its place|give the coordinator another directory"):
        Journal(tmp_path / "j").read()
    assert path.read_bytes() == data


def test_a_record_that_is_none_is_damage(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.write([Record("key", 1)])
    with sqlite3.connect(tmp_path / "j" / FILE) as db:
        db.execute("UPDATE state SET value = x'c1'")
    db.close()
    with pytest.raises(JournalError, match="it is damaged"):
        Journal(tmp_path / "j")


def test_another_version_and_another_file_are_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    with sqlite3.connect(tmp_path / "j" / FILE) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(JournalError, match="it has format 7, and this zmqps reads 6; continue with the zmqps"):
        Journal(tmp_path / "j")
    with sqlite3.connect(tmp_path / "j" / FILE) as db:
        db.execute("PRAGMA application_id = 1")
    db.close()
    with pytest.raises(JournalError, match="it is another file"):
        Journal(tmp_path / "j")


def test_who_comes_back_is_who_wrote_it(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        assert resumed(journal, journal.read(), identity(), OPTIONS) == identity()
    with Journal(tmp_path / "j") as journal:
        other = identity(incarnation=b"d" * 16, secret=b"t" * 16, end_key=b"f" * 16)
        assert resumed(journal, journal.read(), other, OPTIONS) == identity()


@pytest.mark.parametrize(
    ("changes", "servers", "what"),
    [
        ({}, 3, "the number of servers is"),
        ({"job_secret": b"another one, of 16 bytes"}, 2, "the job secret is"),
        ({"keyed": True, "job_secret": b"x" * 16}, 2, "whether nodes have keys and the job secret are"),
    ],
)
def test_one_of_another_cluster_is_refused(tmp_path: Path, changes: dict[str, object], servers: int, what: str) -> None:
    with Journal(tmp_path / "j") as journal:
        resumed(journal, {}, identity(), OPTIONS)
        options = CoordinatorOptions(servers=servers)
        with pytest.raises(JournalError, match=f"it is of another cluster: {what} not the same; start the coordinator"):
            resumed(journal, journal.read(), identity(**changes), options)


def test_one_that_does_not_say_whose_it_is_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for kept in ({"step/default": 1}, {IDENTITY: {"incarnation": b"c" * 16}}):
            with pytest.raises(JournalError, match="it does not name its coordinator; move it away"):
                resumed(journal, kept, identity(), OPTIONS)


def test_where_it_cannot_be_written_the_cluster_goes_on_and_leaves_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.write([Record("a", 1)])
        journal._fail(sqlite3.OperationalError("disk is full"))
        journal.write([Record("a", 2)])  # nothing any more
        assert "disk is full" in journal.failure
        assert not (tmp_path / "j" / FILE).exists()
    assert "continues without one" in caplog.text


def test_that_of_a_cluster_that_is_over_leaves_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.write([Record("a", 1)])
        journal.retire()
    assert not [name for name in (FILE, *(FILE + end for end in BESIDE)) if (tmp_path / "j" / name).exists()]
    Journal(tmp_path / "j").close()
    forget_journal(tmp_path / "j")
    forget_journal(tmp_path / "j")
    assert not (tmp_path / "j").exists()
