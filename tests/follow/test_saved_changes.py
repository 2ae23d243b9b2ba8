"""Files of changes: applied in their order they give the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.core.server.followed import Servers, some
from tests.follow.test_following import Following
from zmqps.errors import PeerLostError

parquet = pytest.importorskip("pyarrow.parquet")


def applied(directory: Path) -> dict[int, list[float]]:
    """Return the table that the files in a directory give."""
    table: dict[int, list[float]] = {}
    for path in sorted(directory.iterdir()):
        if path.stem.endswith("-whole"):
            table.clear()
        for row in parquet.read_table(path).to_pylist():
            if row["op"] == "delete":
                assert row["values"] is None
                table.pop(row["id"], None)
            else:
                assert row["op"] == "upsert"
                table[row["id"]] = row["values"]
    return table


def test_they_give_the_table_through_removals_and_resets(tmp_path: Path) -> None:
    servers = Servers(expire_steps=3)
    following = Following(servers, changes=tmp_path)
    names = []
    for step in range(8):
        servers.push(np.arange(step, step + 5), 1.0)
        if step == 5:
            servers.go_back(1)
        following.poll()
        assert applied(tmp_path) == servers.rows()
        names.append(sorted(path.name for path in tmp_path.iterdir())[-1])
    assert names[0] == "changes-000000001-whole.parquet"
    assert names[1] == "changes-000000002.parquet"
    assert names[5] == "changes-000000006-whole.parquet"
    facts = parquet.read_schema(tmp_path / names[-1]).metadata
    assert facts[b"zmqps.table"] == b"items"
    metadata = parquet.ParquetFile(tmp_path / names[-1]).metadata.metadata
    assert int(metadata[b"zmqps.version"]) == following.table.version


def test_the_first_of_a_directory_is_whole_also_where_a_copy_was_saved(tmp_path: Path) -> None:
    servers = Servers()
    servers.push(some(1, 2), 1.0)
    settings = {"save": tmp_path / "copy", "save_every": 1e-9}
    saving = Following(servers, **settings)
    saving.poll()
    saving.table.save()
    for _ in range(2):  # the second continues
        servers.push(some(3), 1.0)
        following = Following(servers, **settings, changes=tmp_path / "changes")
        following.poll()
        following.now = 1.0
        following.table.save()
        assert applied(tmp_path / "changes") == servers.rows()
    names = sorted(path.name for path in (tmp_path / "changes").iterdir())
    assert names == ["changes-000000001-whole.parquet", "changes-000000002.parquet"]


def test_what_a_kill_has_left_is_removed(tmp_path: Path) -> None:
    servers = Servers()
    servers.push(some(1), 1.0)
    (tmp_path / "changes-000000001-whole.parquet.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / "mine.tmp").write_bytes(b"other")
    Following(servers, changes=tmp_path).poll()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changes-000000001-whole.parquet", "mine.tmp"]


def test_a_poll_that_finds_nothing_or_fails_writes_none(tmp_path: Path) -> None:
    servers = Servers()
    following = Following(servers, changes=tmp_path)
    servers.push(some(1), 1.0)
    following.poll()
    servers.push(some(1, 2, 3), 1.0)
    servers.fails = 1
    with pytest.raises(PeerLostError):
        following.poll()
    assert [path.name for path in tmp_path.iterdir()] == ["changes-000000001-whole.parquet"]
    following.poll()
    assert applied(tmp_path) == servers.rows()
    servers.push(some(4), 1.0)
    following.poll()
    following.poll()
    number = len([*tmp_path.iterdir()])
    following.poll()
    assert len([*tmp_path.iterdir()]) <= number + 1  # the rows of the last update are repeated
