"""Which keys a host or worker gets, at first and later."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from tests.pace import allow
from zmqps.errors import ConfigurationError
from zmqps.keys import create, load_node_keys, rotate, token
from zmqps.keys.keyring import Keys
from zmqps.launch.handout import FOR_NODES, FOR_WORKERS, changed, key_files, version, worker_keys, write_files

PATIENCE = allow(20.0)


@pytest.mark.parametrize("has_nodes", [True, False])
def test_a_host_without_nodes_gets_only_what_a_worker_shows(tmp_path: Path, has_nodes: bool) -> None:
    made = create(tmp_path / "made")
    write_files(tmp_path / "host", key_files(tmp_path / "made", has_nodes=has_nodes))
    workers = Keys.load(tmp_path / "host" / FOR_WORKERS)
    assert workers.cluster == made.cluster
    assert set(workers.pairs) == {"worker"}
    assert not workers.secret
    if has_nodes:
        nodes = load_node_keys(tmp_path / "host" / FOR_NODES)
        assert nodes is not None
        assert nodes.secret == made.secret
    else:
        with pytest.raises(ConfigurationError):
            load_node_keys(tmp_path / "host" / FOR_NODES)


def test_files_that_are_there_are_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    create(tmp_path / "made")
    files = key_files(tmp_path / "made", has_nodes=True)
    write_files(tmp_path / "host", files)
    with pytest.raises(FileExistsError):
        write_files(tmp_path / "host", files)
    path = tmp_path / "host" / FOR_NODES / "authorized.toml"
    with open(path, "rb") as before:  # by a node, just now
        token(tmp_path / "made", name="alice")
        (tmp_path / "host" / FOR_NODES / "authorized.toml.new").touch()  # the disk was full once
        write_files(tmp_path / "host", key_files(tmp_path / "made", has_nodes=True), again=True)
        assert b"alice" not in before.read()
    assert b'name = "alice"' in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list(path.parent.iterdir())) == 4


@pytest.mark.parametrize("has_nodes", [True, False])
def test_the_version_changes_with_what_is_handed_out(tmp_path: Path, has_nodes: bool) -> None:
    create(tmp_path / "keys")
    first = version(tmp_path / "keys", has_nodes=has_nodes)
    token(tmp_path / "keys")
    second = version(tmp_path / "keys", has_nodes=has_nodes)
    assert (second != first) == has_nodes, "a worker does not get the list"
    rotate(tmp_path / "keys", ["worker"])
    assert asyncio.run(changed(tmp_path / "keys", second, has_nodes=has_nodes)) != second
    (tmp_path / "keys" / "worker.key").unlink()
    with pytest.raises(ConfigurationError, match=r"cannot read .*worker\.key"):
        key_files(tmp_path / "keys", has_nodes=has_nodes)


def test_the_key_of_a_worker_follows_a_rotation_and_ends_with_what_it_is_for(tmp_path: Path) -> None:
    create(tmp_path / "keys")

    async def main() -> Path:
        said: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        async with (
            asyncio.timeout(PATIENCE),
            worker_keys(tmp_path / "keys", lambda *entry: said.put_nowait(entry)) as folder,
        ):
            before = Keys.load(folder)
            rotate(tmp_path / "keys", ["worker"])
            assert (await said.get())[0] == "info"
            assert Keys.load(folder).pairs != before.pairs
            (tmp_path / "keys" / "worker.key").unlink()
            level, text = await said.get()
            assert (level, "workers have those of before" in text) == ("error", True)
            assert set(Keys.load(folder).pairs) == {"worker"}
        return folder

    assert not asyncio.run(main()).parent.exists()
