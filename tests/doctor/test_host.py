"""What a host says of itself where the system is not as usual."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps import keys
from zmqps.doctor import host
from zmqps.errors import DeviceError


def test_gpus_are_named_or_it_is_said_why_they_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "visible_gpus", lambda: ("0", "1"))
    monkeypatch.setattr(host, "open_device", lambda text: SimpleNamespace(name=f"{text} (H200)"))
    facts = host.look("0.1.0", [])
    assert (facts.gpus, facts.gpu_problem) == (["cuda:0 (H200)", "cuda:1 (H200)"], "")

    def fail(text: str) -> None:
        raise DeviceError("a GPU needs CuPy")

    monkeypatch.setattr(host, "open_device", fail)
    facts = host.look("0.1.0", [])
    assert (facts.gpus, facts.gpu_problem) == (["0", "1"], "a GPU needs CuPy")


def test_where_ssh_has_come_from_says_by_which_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 40000 10.0.0.2 22")
    assert host.look("0.1.0", []).reached_at == "10.0.0.2"
    monkeypatch.delenv("SSH_CONNECTION")
    assert host.look("0.1.0", []).reached_at == ""


def test_a_resolver_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    resolve = socket.getaddrinfo

    def slow(name: str, *arguments: object, **more: object) -> object:
        if name == "slow":
            released.wait(allow(10.0))
            raise socket.gaierror
        return resolve(name, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert host.resolve(["slow", "127.0.0.1"], 0.1) == {"slow": [], "127.0.0.1": ["127.0.0.1"]}
    released.set()


def test_two_copies_of_other_files_have_other_hashes() -> None:
    assert len(host.source_hash()) == 12
    assert host.source_hash() == host.source_hash()


@for_each("towards, address", [("127.0.0.1", "127.0.0.1"), ("x" * 300, "")])
def test_the_way_to_another_host_tells_ones_own_address(towards: str, address: str) -> None:
    assert host.local_address_towards(towards) == address


def test_copies_of_keys_are_told_apart_by_what_is_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    keys.create(folder)
    (folder / "old").mkdir()
    for name in ("authorized.toml", "cluster.pub"):
        (folder / "old" / name).write_text("of another cluster")
    digests = {str(Path(f.path).relative_to(folder)): f.digest for f in host.look("0.1.0", [], str(folder)).keys}
    assert {"cluster.key", "node.key", "worker.key", "old/cluster.pub"} < digests.keys()
    assert {name: digest for name, digest in digests.items() if digest} == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("authorized.toml", "cluster.pub")
    }


def test_a_list_of_keys_that_is_no_file_has_no_digest(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "authorized.toml")
    (tmp_path / "cluster.pub").symlink_to("nowhere")
    assert [file.digest for file in host.look("0.1.0", [], str(tmp_path)).keys] == ["", ""]
