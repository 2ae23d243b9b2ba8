"""A copy on disk is the last one that was complete, whatever interrupts the writing of the next."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.follow.test_copies import NONE, numbers, spec
from tests.tables import for_each
from zmqps import initial
from zmqps.errors import CheckpointStorageError
from zmqps.follow.copies import TableCopy
from zmqps.follow.saved import STATE, SavedCopy, saved_table

CURSOR = [[0, 512, 7, 3, 3, 0, 0], [512, 1024, 8, 3, 3, 0, 0]]


def filled(number: int) -> TableCopy:
    copy = TableCopy(spec())
    copy.change(NONE, np.arange(number), np.full((number, 5), number, np.float32))
    return copy


def loaded(directory: Path, table=None) -> tuple[TableCopy, object]:  # type: ignore[no-untyped-def]
    table = table or spec()
    copy = TableCopy(table)
    return copy, SavedCopy(directory, "default", table).load(copy)


def test_what_was_saved_is_loaded_with_its_cursor(tmp_path: Path) -> None:
    disk = SavedCopy(tmp_path / "copies" / "items", "default", spec())
    assert loaded(tmp_path / "copies" / "items")[1] is None
    for number in (3, 4):
        disk.save(filled(number), CURSOR, number)
        copy, found = loaded(tmp_path / "copies" / "items")
        assert found == (CURSOR, number)
        assert np.array_equal(copy.read(numbers(0, number - 1, number)), [[number] * 5, [number] * 5, [0] * 5])
    assert len([*(tmp_path / "copies" / "items").glob("rows-*")]) == 1


def test_a_writing_that_was_interrupted_leaves_the_copy_of_before(tmp_path: Path, monkeypatch) -> None:
    disk = SavedCopy(tmp_path, "default", spec())
    disk.save(filled(3), CURSOR, 3)
    monkeypatch.setattr(SavedCopy, "_replace", lambda self, state: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        disk.save(filled(4), [], 4)
    monkeypatch.undo()
    copy, found = loaded(tmp_path)
    assert (len(copy), found) == (3, (CURSOR, 3))
    SavedCopy(tmp_path, "default", spec()).save(filled(5), CURSOR, 5)
    assert loaded(tmp_path)[1] == (CURSOR, 5)
    assert len([*tmp_path.iterdir()]) == 2


@for_each(
    "state",
    [
        b"", b"[]", b"{", b'{"table": "items"}', b"\xff",
        json.dumps({"job": "default", "table": spec().to_wire()}).encode(),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_as_if_it_were_not_there(tmp_path: Path, state: bytes, caplog) -> None:
    SavedCopy(tmp_path, "default", spec()).save(filled(3), CURSOR, 3)
    (tmp_path / STATE).write_bytes(state)
    assert loaded(tmp_path)[1] is None
    assert "all rows are read again" in caplog.text


def test_rows_that_are_missing_or_cut_short_are_read_again(tmp_path: Path, caplog) -> None:
    SavedCopy(tmp_path, "default", spec()).save(filled(300), CURSOR, 3)
    [rows] = tmp_path.glob("rows-*")
    rows.write_bytes(rows.read_bytes()[:-10])
    assert loaded(tmp_path)[1] is None
    rows.unlink()
    assert loaded(tmp_path)[1] is None
    assert caplog.text.count("all rows are read again") == 2


def test_nothing_is_left_of_a_writing_that_was_killed(tmp_path: Path) -> None:
    disk = SavedCopy(tmp_path, "default", spec())
    disk.save(filled(3), CURSOR, 3)
    for name in ("rows-1.safetensors.0123abcd.tmp", "rows-1.safetensors.0123abcd.tmp.ids", "rows-x.safetensors"):
        (tmp_path / name).write_bytes(b"half")
    disk.save(filled(4), CURSOR, 4)
    assert len([*tmp_path.iterdir()]) == 2
    assert loaded(tmp_path)[1] == (CURSOR, 4)


def test_rows_of_another_follower_are_not_taken_with_this_ones_cursor(tmp_path: Path, monkeypatch) -> None:
    first, second = SavedCopy(tmp_path, "default", spec()), SavedCopy(tmp_path, "default", spec())
    first.save(filled(4), CURSOR, 4)
    monkeypatch.setattr(SavedCopy, "_replace", lambda self, state: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        second.save(filled(3), [], 3)
    assert loaded(tmp_path)[1] == (CURSOR, 4)
    assert len(loaded(tmp_path)[0]) == 4


@for_each("cursor", [7, [7], [[1, 2]], [["a"] * 7], [[-1] * 7], None])
def test_a_cursor_of_another_form_is_as_if_none_were_there(tmp_path: Path, cursor: object, caplog) -> None:
    SavedCopy(tmp_path, "default", spec()).save(filled(3), cursor, 3)  # type: ignore[arg-type]
    assert loaded(tmp_path)[1] is None
    assert "all rows are read again" in caplog.text


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointStorageError, match="file"):
        SavedCopy(tmp_path / "file" / "copy", "default", spec())
    disk = SavedCopy(tmp_path, "default", spec())
    monkeypatch.setattr("zmqps.follow.saved.os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "full")))
    monkeypatch.setattr("zmqps.follow.saved.TableFile.publish", lambda self: None)
    with pytest.raises(CheckpointStorageError, match="full"):
        disk.save(filled(3), CURSOR, 3)


def test_a_copy_of_another_table_is_not_taken(tmp_path: Path, caplog) -> None:
    SavedCopy(tmp_path, "default", spec()).save(filled(3), CURSOR, 3)
    assert loaded(tmp_path, spec(initial=initial.constant(1.0)))[1] is None
    assert "a copy of another table" in caplog.text


def test_the_saved_table_is_known_without_the_cluster(tmp_path: Path) -> None:
    assert saved_table(tmp_path, "default", "items") is None
    SavedCopy(tmp_path, "default", spec(expire_steps=3)).save(filled(3), CURSOR, 3)
    assert saved_table(tmp_path, "default", "items") == spec(expire_steps=3)
    assert saved_table(tmp_path, "default", "others") is None
    assert saved_table(tmp_path, "other", "items") is None
    for text in ("[]", "{", '{"table": {}}', '{"job": "default", "table": 7}'):
        (tmp_path / STATE).write_text(text)
        assert saved_table(tmp_path, "default", "items") is None
