"""End keys of coordinators that share a directory for temporary files, with others of their host and of other hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import ROOT
from tests.pace import allow
from zmqps.net.system import host
from zmqps.nodes.endkey import find_end_key, new_end_key, offer_end_key

HERE, THERE = "tcp://127.0.0.1:5571", "tcp://127.0.0.1:5572"
#: Offers a key, and is killed.
KILLED = """
import os, sys
from zmqps.nodes.endkey import offer_end_key
with offer_end_key(sys.argv[1], b"k" * 16):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Be another host of the same kernel, or of another one."""

    def be(name: str) -> None:
        monkeypatch.setattr(host, "host_id", lambda: name)

    return be


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("zmqps-*/*")}


def test_two_hosts_have_a_coordinator_each_at_one_port(on) -> None:
    one, other = new_end_key(), new_end_key()
    on("a")
    with offer_end_key(HERE, one):
        on("b")
        assert find_end_key(HERE) == b"", "that is another host's"
        with offer_end_key(HERE, other):
            assert find_end_key(HERE) == other
            on("a")
            assert find_end_key(HERE) == one
            on("b")
        on("a")
        assert find_end_key(HERE) == one, "nobody removes what it has not made"
    assert find_end_key(HERE) == b""


def test_two_coordinators_of_one_host_have_one_port_at_two_addresses() -> None:
    one, other = new_end_key(), new_end_key()
    with offer_end_key("tcp://127.0.0.1:5571", one):
        assert find_end_key("tcp://localhost:5571") == one, "under another name"
        with offer_end_key("tcp://10.0.0.1:5571", other):
            assert find_end_key("tcp://127.0.0.1:5571") == one
            assert find_end_key("tcp://10.0.0.1:5571") == other
            assert find_end_key("tcp://10.0.0.9:5571") == b"", "which of them is not known"
        assert find_end_key("tcp://127.0.0.1:5571") == one


def kill_one(endpoint: str, folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    subprocess.run([sys.executable, "-c", KILLED, endpoint], env=env, check=False, timeout=allow(30))


def test_what_a_killed_coordinator_of_this_host_has_left_is_removed(shared: Path) -> None:
    kill_one(HERE, shared)
    assert find_end_key(HERE) == b"k" * 16
    with offer_end_key(THERE, new_end_key()):
        assert find_end_key(HERE) == b""
    assert files(shared) == set()


def test_what_another_host_has_left_stays(shared: Path, on) -> None:
    kill_one(HERE, shared)
    left = files(shared)
    on("b")
    with offer_end_key(THERE, new_end_key()):
        assert left < files(shared)
    assert files(shared) == left


def test_a_coordinator_whose_process_nobody_here_sees_keeps_its_key(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in another namespace of processes, as a container with the host's network."""

    def unseen(pid: int, number: int) -> None:
        raise ProcessLookupError

    key = new_end_key()
    with offer_end_key(HERE, key):
        monkeypatch.setattr(os, "kill", unseen)
        with offer_end_key(THERE, new_end_key()):
            assert find_end_key(HERE) == key
        assert find_end_key(HERE) == key


def test_hosts_of_one_network_number_and_two_kernels_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first network of a kernel has the same number on most machines."""
    found = set()
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        monkeypatch.setattr(host, "BOOT_ID", tmp_path / name)
        found.add(host.host_tag())
    assert len(found) == 2
