"""Keys in files and tokens: what is taken, and what is refused and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps import keys
from zmqps.errors import ConfigurationError, PSError, UnsafeFileError
from zmqps.keys.keyring import Keys, find_keys, load_node_keys, read_entries

ADDRESS = "tcp://10.0.0.1:5570"
KING = "[[key]]\nname='a'\nrole='king'\npublic='x'\nmade=2026-01-01T00:00:00Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.create(tmp_path / "keys")
    return tmp_path / "keys"


def test_a_token_tells_all_that_a_worker_needs(folder: Path) -> None:
    token = keys.token(folder, address=ADDRESS)
    found, nodes = Keys.of_token(f" {token}\n"), Keys.load(folder)
    assert (found.address, found.cluster, found.secret) == (ADDRESS, nodes.cluster, "")
    assert found.pair("worker") == found.pair("observer")
    with pytest.raises(ConfigurationError, match="the token is for worker"):
        found.pair("server")
    with pytest.raises(ConfigurationError, match="does not hold the keys of a node"):
        found.check_node()
    assert found.pair("worker").secret not in repr(found)


@given(st.data())
def test_a_damaged_token_is_refused(data: st.DataObject) -> None:
    token = Keys(source="", cluster="a" * 40, pairs={}).token("worker", keys.Pair("b" * 40, "c" * 40), ADDRESS)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("aZ_-=é\0 ").filter(lambda c: c != token[at]))
    for damaged in (token[:at] + other + token[at + 1 :], token[:at], token + other * 2000):
        try:
            assert Keys.of_token(damaged).token("worker", Keys.of_token(damaged).pairs["worker"], ADDRESS) == token
        except ConfigurationError as error:
            assert "token" in str(error)  # noqa: PT017  (white space around it is nothing wrong)


def test_a_role_takes_the_least_key_that_allows_it(folder: Path) -> None:
    found = Keys.load(folder)
    assert [found.pair(role) for role in ("server", "worker", "observer", "operator")] == [
        found.pairs[role] for role in ("node", "worker", "observer", "node")
    ]
    (folder / "observer.key").unlink()
    assert Keys.load(folder).pair("observer") == found.pairs["worker"]


@pytest.mark.parametrize("name", ["cluster.key", "node.key", "authorized.toml"])
def test_a_file_that_others_may_read_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0o640)
    with pytest.raises(UnsafeFileError, match=f"others may read or change it; chmod 600 .*{name}"):
        load_node_keys(folder)


def test_a_mounted_secret_of_links_is_taken(folder: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for file in folder.iterdir():
        (mounted / file.name).symlink_to(file)
    found = load_node_keys(mounted)
    assert found is not None
    assert found.pairs == Keys.load(folder).pairs


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("cluster.pub", "", "no keys in"),
        ("cluster.pub", "x" * 39, "does not hold a key of 40 characters"),
        ("worker.key", "x" * 40, "does not hold a key of 40 characters"),
        ("cluster.key", "", "does not hold the keys of a node"),
        ("authorized.toml", "", "without it a node would let no peer in"),
        ("authorized.toml", "[[key", "cannot read"),
        ("authorized.toml", "other = 1", "and nothing else"),
        ("authorized.toml", "key = 1", "and nothing else"),
        ("authorized.toml", "[[key]]\nname = 'a'", "a table"),
        (
            "authorized.toml",
            "[[key]]\nname='a'\nrole='king'\npublic='x'\nmade=2026-01-01T00:00:00Z",
            "a role is one of",
        ),
        ("authorized.toml", "[[key]]\nname='a'\nrole='node'\npublic='x'\nmade=2026-01-01T00:00:00", "a time ends in Z"),
        ("authorized.toml", "[[key]]\nname='a'\nrole='node'\npublic='x'\nmade=2026-01-01T00:00:00Z", "40 characters"),
        (
            "authorized.toml",
            "[[key]]\nname='a b'\nrole='node'\npublic='x'\nmade=2026-01-01T00:00:00Z",
            "cannot be a key",
        ),
    ],
)
def test_files_that_are_not_as_they_were_written_are_refused(folder: Path, name: str, text: str, why: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ConfigurationError, match=why):
        load_node_keys(folder)


def test_what_is_no_file_is_refused(folder: Path) -> None:
    (folder / "node.key").unlink()
    os.mkfifo(folder / "node.key", 0o600)
    with pytest.raises(UnsafeFileError, match="no plain file"):
        Keys.load(folder)


@given(st.binary(max_size=200))
def test_any_list_of_keys_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("list") / "authorized.toml"
    path.touch(0o600)
    path.write_bytes(data)
    try:
        read_entries(path)
    except PSError:
        pass


def test_arguments_win_over_the_environment(folder: Path) -> None:
    token = keys.token(folder, address=ADDRESS)
    assert find_keys(None, None, {}) is None
    assert find_keys(None, None, {"ZMQPS_KEYS": str(folder)}) == Keys.load(folder)
    both = {"ZMQPS_KEYS": str(folder), "ZMQPS_TOKEN": token}
    assert find_keys(None, None, both) == Keys.of_token(token)
    assert find_keys(folder, None, both) == Keys.load(folder)
    with pytest.raises(ConfigurationError, match="either keys or a token"):
        find_keys(folder, token, {})
