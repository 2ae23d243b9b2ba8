"""The gate of a node with keys: whom its handler lets in, by raw sockets; no node runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.pace import allow
from zmqps import keys
from zmqps.errors import ConfigurationError
from zmqps.keys import curve
from zmqps.keys.curve import DOMAIN, Gate, secure_dealer
from zmqps.keys.keyring import AUTHORIZED, Entry, Keys, load_node_keys

PATIENCE = allow(20.0)
#: So often the list is looked at while nothing may be said about it again.
LOOKS = 5
ENDED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
UNKNOWN, AS_BEFORE = "its key is not of this cluster", "the list of keys is as it was before"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.create(tmp_path / "keys")
    return tmp_path / "keys"


class Node:
    """A socket behind a gate; nobody reads it."""

    def __init__(self, folder: Path) -> None:
        found = load_node_keys(folder)
        assert found is not None
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.changed = threading.Event()
        before = set(threading.enumerate())
        self.gate = Gate(self.context, found, self.changed.set)
        [self.thread] = set(threading.enumerate()) - before
        self._sockets: list[zmq.Socket[bytes]] = []
        self.endpoint = self.bind()

    def bind(self, domain: bytes = DOMAIN) -> str:
        """Open a socket more, and return where."""
        router = self.context.socket(zmq.ROUTER)
        self._sockets.append(router)
        self.gate.secure(router)
        router.setsockopt(zmq.ZAP_DOMAIN, domain)
        router.bind("tcp://127.0.0.1:0")
        return str(router.getsockopt_string(zmq.LAST_ENDPOINT))

    def close(self) -> None:
        for router in self._sockets:
            router.close(0)
        self.context.term()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def node(folder: Path) -> Iterator[Node]:
    made = Node(folder)
    try:
        yield made
    finally:
        made.close()


def opens(endpoint: str, token: str) -> bool:
    """Whether somebody with a token is let in."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        secure_dealer(dealer, Keys.of_token(token), "worker")
        monitor = dealer.get_monitor_socket(ENDED)
        try:
            dealer.connect(endpoint)
            assert monitor.poll(1000 * PATIENCE), "nobody answers"
            return bool(recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        finally:
            dealer.disable_monitor()
            monitor.close(0)


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def wait_until(good: Callable[[], bool]) -> None:
    """Wait for what the gate's thread does."""
    ends_at, patience = time.monotonic() + PATIENCE, threading.Event()
    while not good():
        assert time.monotonic() < ends_at
        patience.wait(0.005)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Let a gate look at its list all the time; return an entry for each time."""
    seen = list[None]()
    look = Gate._look

    def counted(gate: Gate) -> None:
        look(gate)
        seen.append(None)

    monkeypatch.setattr(Gate, "_look", counted)
    monkeypatch.setattr(curve, "WATCH_S", 0.01)
    return seen


def test_a_key_of_the_cluster_opens_and_an_unknown_one_does_not(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = keys.token(folder)
    keys.create(tmp_path / "other")
    (tmp_path / "other" / "cluster.pub").write_text((folder / "cluster.pub").read_text())
    with node(folder) as made:
        assert opens(made.endpoint, token)
        assert lines(caplog, "") == []
        assert not opens(made.endpoint, keys.token(tmp_path / "other"))
    [line] = lines(caplog, "refused a connection")
    assert line == f"refused a connection from 127.0.0.1: {UNKNOWN}"


def test_a_handshake_for_another_domain_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = keys.token(folder)
    with node(folder) as made:
        assert not opens(made.bind(b"another"), token)
        assert not opens(made.bind(DOMAIN + b"2"), token)
        assert opens(made.bind(DOMAIN), token)
    assert len(lines(caplog, UNKNOWN)) == 1, "the second is the same line"


def test_a_handshake_does_not_wait_for_a_node_that_computes(folder: Path) -> None:
    token, ready, enough = keys.token(folder), threading.Event(), threading.Event()
    endpoints = []

    def compute() -> None:
        """Stand for the thread of a node's loop, which does nothing else meanwhile."""
        with node(folder) as made:
            endpoints.append(made.endpoint)
            ready.set()
            enough.wait(PATIENCE)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        assert opens(endpoints[0], token)
        assert not enough.is_set()
        assert thread.is_alive()
    finally:
        enough.set()
        thread.join(PATIENCE)


def test_a_key_that_is_added_opens_at_once_and_one_that_is_revoked_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(curve, "WATCH_S", 2 * PATIENCE)  # it is the handshake that looks
    with node(folder) as made:
        late = keys.token(folder, name="late")
        assert opens(made.endpoint, late)
        keys.revoke(folder, ["late"])
        assert not opens(made.endpoint, late)
        assert made.changed.is_set()
    assert "the worker's key 'late' was revoked at 20" in "".join(lines(caplog, "refused a connection"))


def put(file: Path, text: str) -> None:
    """Write a file all at once: a gate may look at any moment."""
    other = file.with_name("new")
    other.write_text(text)
    other.chmod(0o600)
    other.replace(file)


def spoil(file: Path) -> None:
    put(file, "[[key]\n")


def empty(file: Path) -> None:
    put(file, "")


def remove(file: Path) -> None:
    file.unlink()


def expose(file: Path) -> None:
    file.chmod(0o644)


def replace_folder(file: Path) -> None:
    """Let even the file's facts be out of reach: as where a disk of the network has gone."""
    file.parent.rename(file.parent.with_name("away"))
    file.parent.write_text("a file where the directory was")


@pytest.mark.parametrize("damage", [spoil, empty, remove, expose, replace_folder])
def test_a_list_that_cannot_be_read_leaves_open_what_was_and_is_told_once(
    folder: Path, damage: Callable[[Path], None], looks: list[None], caplog: pytest.LogCaptureFixture
) -> None:
    token = keys.token(folder)
    with node(folder) as made:
        damage(folder / AUTHORIZED)
        wait_until(lambda: bool(lines(caplog, AS_BEFORE)))
        number = len(looks)
        assert opens(made.endpoint, token)
        wait_until(lambda: len(looks) >= number + LOOKS)
        assert opens(made.endpoint, token)
        assert not made.changed.is_set()
    [record] = [record for record in caplog.records if AS_BEFORE in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert "\n" not in record.getMessage()
    assert lines(caplog, "refused") == []


def test_what_the_error_advises_mends_it(folder: Path, looks: list[None], caplog: pytest.LogCaptureFixture) -> None:
    file = folder / AUTHORIZED
    before = file.read_text()
    late = keys.token(folder)
    after = file.read_text()
    file.write_text(before)
    with node(folder) as made:
        assert not opens(made.endpoint, late)
        file.chmod(0o644)  # as a copy without -p has it
        file.write_text(after)  # which a gate may see half done, too
        wait_until(lambda: bool(lines(caplog, AS_BEFORE)))
        number = len(looks)
        wait_until(lambda: len(looks) >= number + LOOKS)
        [line] = lines(caplog, AS_BEFORE)
        assert f"chmod 600 {file}" in line
        assert not opens(made.endpoint, late)
        file.chmod(0o600)
        assert opens(made.endpoint, late)


def test_a_list_that_was_out_of_reach_for_a_while_is_read_again(
    folder: Path, looks: list[None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve, "AGAIN_S", 0.05)
    short, read = threading.Event(), curve.read_entries

    def read_unless_short(path: Path) -> list[Entry]:
        if short.is_set():
            raise ConfigurationError(f"cannot read {path}: Too many open files")
        return read(path)

    with node(folder) as made:
        monkeypatch.setattr(curve, "read_entries", read_unless_short)
        short.set()
        keys.revoke(folder, ["worker"])
        wait_until(lambda: bool(lines(caplog, "Too many open files")))
        number = len(looks)
        wait_until(lambda: len(looks) >= number + LOOKS)
        assert not made.changed.is_set()
        short.clear()  # the file itself stays as it is
        wait_until(made.changed.is_set)
    assert len(lines(caplog, AS_BEFORE)) == 1
