"""Clusters with keys: who is let in, who is not, what both ends say, and what can be read on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import zmqps
from tests.inprocess import InProcessCluster
from tests.pace import allow, stretch
from zmqps import keys
from zmqps.core.protocol.events import COORDINATOR
from zmqps.core.protocol.messages import Leave
from zmqps.core.protocol.wire import encode
from zmqps.core.server.extensions import ServerMachine
from zmqps.errors import ConfigurationError, DrainError, IdentityError, KeyRefusedError
from zmqps.keys.curve import secure_dealer
from zmqps.net.driver import Driver
from zmqps.net.identity import new_identity
from zmqps.net.routes import new_local_endpoint
from zmqps.net.zeromq import ZmqTransport
from zmqps.nodes.coordinator import CoordinatorConfig
from zmqps.nodes.inquiry import ask_health, ask_stacks, ask_status, drain_server, end_job
from zmqps.nodes.server import ServerConfig

PATIENCE = allow(30.0)
#: Within so many seconds both ends know.
SOON_S = 2.0
#: ZMTP's greeting and CURVE's first command (RFC 23, 26).
HELLO_NBYTES = 64 + 202


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.create(tmp_path / "keys")
    return tmp_path / "keys"


@contextmanager
def cluster(folder: Path | None) -> Iterator[InProcessCluster]:
    with InProcessCluster(folder, heartbeat_interval=0.2) as made:
        yield made


def start(worker: zmqps.Worker, size: int = 4) -> None:
    worker.init({"secret_layer": np.zeros(size, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def heard(caplog: pytest.LogCaptureFixture, text: str, number: int = 1) -> None:
    """Wait for the nodes' lines: they are logged by other threads."""
    ends_at, patience = time.monotonic() + stretch(SOON_S), threading.Event()
    while len(lines(caplog, text)) < number:
        assert time.monotonic() < ends_at, f"{text!r}: {[record.getMessage() for record in caplog.records]}"
        patience.wait(0.01)


@contextmanager
def refused_soon(caplog: pytest.LogCaptureFixture, here: str, there: str) -> Iterator[None]:
    """Assert that both ends say within two seconds, each in a line, that somebody is refused."""
    begun = time.monotonic()
    with pytest.raises(KeyRefusedError) as found:
        yield
    assert time.monotonic() - begun < stretch(SOON_S)
    assert here in str(found.value)
    assert "\n" not in str(found.value)
    heard(caplog, there)


def test_a_worker_with_a_token_trains_and_one_without_is_refused(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        cluster(folder) as made,
        zmqps.connect(security=zmqps.Security(token=keys.token(folder, address=made.address))) as worker,
    ):
        start(worker)
        worker.push({"secret_layer": np.ones(4, np.float32)})
        assert worker.pull()["secret_layer"].tolist() == [-1.0] * 4
        assert lines(caplog, "refused") == [], "none of the cluster's own"
        with refused_soon(caplog, "refuses peers without a key", "it shows no key"):
            zmqps.connect(made.address)
        assert len(lines(caplog, "refused")) == 1
        with pytest.raises(KeyRefusedError, match="refuses peers without a key"):
            ask_status(made.address)
        status = ask_status(made.address, keys=keys.Keys.of_token(keys.token(folder, "observer")))
        assert [member["role"] for member in status["members"]] == ["server", "worker"]


def test_a_stranger_with_keys_of_its_own_is_refused(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "own"
    keys.create(own)
    with cluster(folder) as made:
        with refused_soon(caplog, "not the one in this process's keys", "it looks for a node with another key"):
            zmqps.connect(made.address, security=zmqps.Security(keys=own))
        (own / "cluster.pub").write_text((folder / "cluster.pub").read_text())
        with refused_soon(caplog, "its key is unknown, expired or revoked", "its key is not of this cluster"):
            zmqps.connect(made.address, security=zmqps.Security(keys=own))


def test_keys_at_a_cluster_that_has_none_are_refused(folder: Path) -> None:
    with cluster(None) as made, pytest.raises(KeyRefusedError, match="was started without keys"):
        zmqps.connect(made.address, security=zmqps.Security(keys=folder))


def test_revoking_a_key_ends_its_connection_within_a_second_and_its_token_opens_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(folder) as made:
        mallory = keys.token(folder, address=made.address, name="mallory")
        with (
            zmqps.connect(security=zmqps.Security(token=mallory)) as worker,
            zmqps.connect(made.address, security=zmqps.Security(keys=folder)) as other,
        ):
            start(worker)
            start(other)
            keys.revoke(folder, ["mallory"])
            with refused_soon(caplog, "refuses this worker", "lost worker 0"):
                while True:
                    worker.push({"secret_layer": np.ones(4, np.float32)})
            heard(caplog, "shut a connection", 2)  # both nodes
            assert all("'mallory' was revoked at 20" in line for line in lines(caplog, "shut a connection"))
            before = other.pull()["secret_layer"].tolist()
            caplog.clear()
            with pytest.raises(KeyRefusedError):
                worker.push({"secret_layer": np.ones(4, np.float32)})
            with refused_soon(caplog, "unknown, expired or revoked", "refused a connection"):
                zmqps.connect(security=zmqps.Security(token=mallory))
            assert other.pull()["secret_layer"].tolist() == before


def test_a_token_that_has_expired_opens_nothing_and_its_connection_ends(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(folder) as made:
        token = keys.token(folder, address=made.address, name="guest", lasts=1.5)
        with zmqps.connect(security=zmqps.Security(token=token)) as worker:
            start(worker)
            with refused_soon(caplog, "refuses this worker", "lost worker 0"):
                while True:
                    worker.pull()
        caplog.clear()
        with refused_soon(caplog, "unknown, expired or revoked", "the worker's key 'guest' has expired at"):
            zmqps.connect(security=zmqps.Security(token=token))


def test_a_key_allows_its_role_and_no_other(folder: Path) -> None:
    with cluster(folder) as made, zmqps.connect(made.address, security=zmqps.Security(keys=folder)) as worker:
        start(worker)
        looks = keys.token(folder, "observer", made.address)
        with pytest.raises(
            ConfigurationError, match="the token is for observer, whose key does not allow to be a worker"
        ):
            zmqps.connect(security=zmqps.Security(token=looks))
        with zmqps.connect(security=zmqps.Security(token=looks), observer=True) as observer:
            assert observer.pull()["secret_layer"].tolist() == [0.0] * 4
            with pytest.raises(zmqps.errors.PSError):
                observer.push({"secret_layer": np.ones(4, np.float32)})
        for role in ("worker", "observer"):
            with pytest.raises(IdentityError, match="does not allow to end jobs"):
                end_job(made.address, "default", keys=keys.Keys.of_token(keys.token(folder, role)))
        assert end_job(made.address, "default", keys=keys.Keys.load(folder)) == "job 'default' has ended"


def test_who_has_a_nodes_keys_asks_for_what_only_who_runs_the_cluster_may(folder: Path) -> None:
    nodes = keys.Keys.load(folder)
    with cluster(folder) as made:
        made.wait_until(lambda status: bool(status["members"]))
        for role in ("worker", "observer"):
            shown = keys.Keys.of_token(keys.token(folder, role))
            assert ask_health(made.address, keys=shown)["nodes"]
            with pytest.raises(IdentityError, match="does not allow to see what the threads"):
                ask_stacks(made.address, "server-0", keys=shown)
            with pytest.raises(IdentityError, match="does not allow to drain servers"):
                drain_server(made.address, "server-0", keys=shown)
        assert ask_stacks(made.address, "server-0", keys=nodes)["stacks"]
        with pytest.raises(DrainError, match="no other server"):  # it may, and it cannot be done
            drain_server(made.address, "server-0", keys=nodes)


def test_a_worker_s_key_does_not_make_a_server(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cluster(folder) as made:
        worker = keys.Keys.of_token(keys.token(folder, "worker"))
        begun = time.monotonic()
        transport = ZmqTransport(keys=worker, role="worker")
        machine = ServerMachine(new_identity("server"), made.address, lambda *_: None)  # type: ignore[arg-type,return-value]
        ended = asyncio.run(Driver(machine, transport, logging.getLogger("zmqps.tests")).run())
        assert time.monotonic() - begun < stretch(SOON_S)
        assert "the worker's key 'worker-1' does not allow to join as a server" in ended.reason
        assert len(lines(caplog, "refused a request of peer")) == 1
        with pytest.raises(ConfigurationError, match="does not hold the keys of a node"):
            worker.check_node()


@pytest.mark.parametrize("at", ["coordinator", "server"])
def test_who_has_the_name_of_another_connection_and_a_key_of_its_own_is_not_heard(
    folder: Path, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(folder) as made, zmqps.connect(made.address, security=zmqps.Security(keys=folder)) as worker:
        start(worker)
        node = made.transport(at)
        assert node.counters["keys_refused"] == 0
        sockets = worker._member.connection.thread.transport._inner._dealers.sockets  # type: ignore[union-attr]
        [peer] = sockets.keys() - {COORDINATOR} if at == "server" else [COORDINATOR]
        [server] = [member for member in made.status()["members"] if member["role"] == "server"]
        with zmq.Context() as context, context.socket(zmq.DEALER) as thief:
            secure_dealer(thief, keys.Keys.of_token(keys.token(folder, "worker")), "worker")
            thief.setsockopt(zmq.IDENTITY, sockets[peer].getsockopt(zmq.IDENTITY))
            thief.setsockopt(zmq.LINGER, 0)
            thief.connect(made.address if at == "coordinator" else server["endpoint"].split()[0])
            for _ in range(5):
                thief.send_multipart(encode(Leave("closed")))
                assert not thief.poll(100), "nobody answers"
        heard(caplog, "its key is not valid, or not the one that has joined under its name")
        assert node.counters["keys_refused"] >= 1
        for _ in range(3):
            worker.push({"secret_layer": np.ones(4, np.float32)}, timeout=PATIENCE)
        assert worker.pull()["secret_layer"].tolist() == [-3.0] * 4
        worker.barrier("all", timeout=PATIENCE)
        assert made.status()["gone"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file are Linux's")
def test_a_socket_of_this_host_takes_nobody_without_a_key(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cluster(folder) as made:
        local = made.open(new_local_endpoint())
        with refused_soon(caplog, "refuses peers without a key", "it shows no key"):
            ask_status(local)
        assert ask_status(local, keys=keys.Keys.load(folder))["endpoint"] == made.address


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5570", "tcp://192.0.2.1:5570"])
def test_beyond_loopback_a_node_needs_keys_or_to_be_told_that_it_needs_none(folder: Path, endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="zmqps keys create DIR"):
        CoordinatorConfig(address=endpoint)
    with pytest.raises(ConfigurationError, match="zmqps keys create DIR"):
        ServerConfig(coordinator=endpoint, address=endpoint)
    CoordinatorConfig(address=endpoint, keys=folder)
    ServerConfig(coordinator=endpoint, address=endpoint, keys=folder)
    CoordinatorConfig(address=endpoint, insecure=True)


def test_processes_take_rotated_keys_by_themselves(folder: Path) -> None:
    with cluster(folder) as made, zmqps.connect(made.address, security=zmqps.Security(keys=folder)) as worker:
        start(worker)
        old = keys.Keys.load(folder)
        keys.rotate(folder, grace=0.0)  # what is open ends at once, and comes back with the new keys
        for _ in range(20):
            worker.push({"secret_layer": np.ones(4, np.float32)}, timeout=PATIENCE)
            threading.Event().wait(0.05)
        assert worker.pull()["secret_layer"].tolist() == [-20.0] * 4
        made.wait_until(lambda status: len(status["members"]) == 2 and not status["gone"])
        with pytest.raises(KeyRefusedError):
            ask_status(made.address, keys=replace(old, directory=None))


# --- the wire -----------------------------------------------------------------------------------


class Recorder:
    """Stands before a TCP port, and keeps all that goes through it, both ways."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._there = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = bytearray()
        self.asked = bytearray()  # what came from those who connect
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(self._there)
            self._sockets += [here, there]
            for source, sink in ((here, there), (there, here)):
                self._threads.append(threading.Thread(target=self._pump, args=(source, sink)))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                if sink in self._sockets[1::2]:
                    self.asked += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # a close alone wakes no thread that reads
            one.close()
        for thread in self._threads:
            thread.join(PATIENCE)


def _train_through(recorder: Recorder, value: np.ndarray[Any, Any], **who: Any) -> None:
    with zmqps.connect(recorder.endpoint, transport="tcp", name="agent-smith", **who) as worker:
        start(worker, value.size)
        worker.push({"secret_layer": value})
        worker.pull()


@pytest.mark.parametrize("keyed", [True, False])
def test_with_keys_what_goes_over_the_wire_holds_neither_values_nor_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    value = np.full(4096, 1234.5678, np.float32)
    value[::2] = np.arange(2048)
    secrets = [b"secret_layer", b"agent-smith", b"default", value[100:200].tobytes(), (-value[100:200]).tobytes()]
    with cluster(folder if keyed else None) as made, closing(Recorder(made.address)) as coordinator:
        made.wait_until(lambda status: bool(status["members"]))
        server = made.status()["members"][0]["endpoint"].split()[0]
        with closing(Recorder(server)) as data:
            monkeypatch.setattr("zmqps.net.lane.shm.choose", lambda advertised, transport: _Route(data.endpoint, False))
            _train_through(coordinator, value, **({"security": zmqps.Security(keys=folder)} if keyed else {}))
            wire = bytes(coordinator.seen + data.seen)
    assert len(data.seen) > 3 * value.nbytes, "initial values, gradients and values went this way"
    assert [secret for secret in secrets if secret in wire] == ([] if keyed else secrets)


def test_what_was_recorded_of_a_token_s_connection_opens_nothing_when_it_is_said_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(folder) as made, closing(Recorder(made.address)) as recorder:
        with zmqps.connect(recorder.endpoint, security=zmqps.Security(token=keys.token(folder))) as worker:
            start(worker)
        begun = time.monotonic()
        host, _, port = made.address.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port)), stretch(SOON_S)) as replay:
            replay.sendall(recorder.asked[:HELLO_NBYTES])
            answer = bytearray()
            while b"WELCOME" not in answer:
                answer += replay.recv(1 << 16)
            replay.sendall(recorder.asked[HELLO_NBYTES:])
            with contextlib.suppress(ConnectionResetError):
                answer += replay.recv(1 << 16)
        assert time.monotonic() - begun < stretch(SOON_S)
        assert b"READY" in recorder.seen
        assert b"READY" not in answer
        heard(caplog, "or it repeats what another peer has sent")
        assert len(lines(caplog, "refused")) == 1
        assert [member["role"] for member in made.status()["members"]] == ["server"]


class _Route:
    def __init__(self, endpoint: str, shared: bool) -> None:
        self.endpoint, self.shared = endpoint, shared

    def __iter__(self) -> Iterator[Any]:
        return iter((self.endpoint, self.shared))
