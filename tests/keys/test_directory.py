"""Keys made, handed out, rotated and revoked, in files."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path

import pytest

from zmqps import keys
from zmqps.errors import ConfigurationError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.create(tmp_path / "keys")
    return tmp_path / "keys"


def valid(folder: Path) -> dict[str, str]:
    return {entry.name: entry.role for entry in keys.entries(folder) if not entry.refusal(time.time())}


def test_keys_are_for_their_owner_s_eyes_only(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    names = {"cluster.pub", "cluster.key", "node.key", "worker.key", "observer.key", "authorized.toml"}
    assert files == dict.fromkeys(names, 0o600)
    assert valid(folder) == {"node": "node", "worker": "worker", "observer": "observer"}


def test_keys_are_not_made_twice(folder: Path) -> None:
    before = keys.Keys.load(folder)
    with pytest.raises(ConfigurationError, match="zmqps keys rotate"):
        keys.create(folder)
    assert keys.Keys.load(folder) == before


def test_tokens_have_keys_and_names_of_their_own(folder: Path) -> None:
    tokens = {keys.token(folder), keys.token(folder), keys.token(folder, "observer", name="eve", lasts=60.0)}
    assert len(tokens) == 3
    assert {"worker-1": "worker", "worker-2": "worker", "eve": "observer"}.items() <= valid(folder).items()
    with pytest.raises(ConfigurationError, match="there is a key 'eve' already"):
        keys.token(folder, name="eve")
    for wrong in ({"role": "king"}, {"name": "a b"}, {"lasts": 0.0}, {"address": "10.0.0.1"}):
        with pytest.raises(ConfigurationError):
            keys.token(folder, **wrong)  # type: ignore[arg-type]


def test_tokens_that_are_made_at_once_are_all_kept(folder: Path) -> None:
    threads = [threading.Thread(target=keys.token, args=(folder,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(valid(folder)) == 3 + 8


def test_what_is_revoked_stays_in_the_list_and_its_name_is_free(folder: Path) -> None:
    keys.token(folder, name="alice")
    [revoked] = keys.revoke(folder, ["alice"])
    assert "the worker's key 'alice' was revoked at" in revoked.refusal(time.time())
    assert "alice" not in valid(folder)
    with pytest.raises(ConfigurationError, match="no key 'alice' opens anything; there are node, observer, worker"):
        keys.revoke(folder, ["alice"])
    keys.token(folder, name="alice")
    assert "alice" in valid(folder)


def test_rotated_keys_open_beside_the_old_ones_for_a_while(folder: Path) -> None:
    before = keys.Keys.load(folder)
    made = keys.rotate(folder, ["worker"], grace=600.0)
    after = keys.Keys.load(folder)
    assert after.pairs == {**before.pairs, **made} != before.pairs
    old, new = (entry for entry in keys.entries(folder) if entry.name == "worker")
    assert (old.public, new.public) == (before.pairs["worker"].public, made["worker"].public)
    now = time.time()
    assert not old.refusal(now)
    assert "expired" in old.refusal(now + 601)
    assert not new.refusal(now + 601)


def test_without_the_keys_of_a_node_nothing_can_be_changed(folder: Path, tmp_path: Path) -> None:
    (folder / "cluster.key").unlink()
    for change in (lambda: keys.token(folder), lambda: keys.revoke(folder, ["worker"]), lambda: keys.rotate(folder)):
        with pytest.raises(ConfigurationError, match="does not hold the keys of a node"):
            change()
    with pytest.raises(ConfigurationError, match="zmqps keys create makes one"):
        keys.token(tmp_path / "nowhere")
