"""Strangers on live nodes: stolen identities, uninvited clients, and who may join at all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import zmqps
from tests import inprocess
from tests.fuzz.cluster import hello
from tests.inprocess import InProcessCluster
from tests.pace import allow, stretch
from zmqps.core.protocol import exits
from zmqps.core.protocol.messages import Error, Leave, Left, Load, Message, Pull, Push, Welcome
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import IdentityError, NotJoinedError, WrongPeerError
from zmqps.launch.processes import node_command
from zmqps.nodes.inquiry import ask_status, end_job, inquire, run_blocking

PATIENCE = allow(60.0)


class Stranger:
    """A plain DEALER at a node."""

    def __init__(self, endpoint: str, routing_id: bytes = b"") -> None:
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.DEALER)
        if routing_id:
            self._socket.setsockopt(zmq.IDENTITY, routing_id)
        self._socket.connect(endpoint)

    def ask(self, message: Message) -> Message:
        self._socket.send_multipart(encode(message))
        assert self._socket.poll(PATIENCE * 1000), f"no answer to {message}"
        return decode(self._socket.recv_multipart())

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@contextmanager
def stranger(endpoint: str, routing_id: bytes = b"") -> Iterator[Stranger]:
    one = Stranger(endpoint, routing_id)
    try:
        yield one
    finally:
        one.close()


@contextmanager
def training() -> Iterator[tuple[InProcessCluster, zmqps.Worker, str, bytes, bytes]]:
    """Run a cluster and a worker; yield both, the server's endpoint, and the incarnations of server and worker."""
    with InProcessCluster(heartbeat_interval=0.2) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
        machine = worker._member.connection.thread.machine
        (link,) = machine.links.by_shard
        assert link.server.handshake.welcome is not None
        endpoint = link.server.handshake.endpoint.split()[0]
        yield cluster, worker, endpoint, link.server.handshake.welcome.incarnation, machine.member.identity.incarnation


def refused(message: Message, error: type[Exception]) -> None:
    assert isinstance(message, Error)
    assert message.code == error.code  # type: ignore[attr-defined]


def test_a_stolen_incarnation_changes_nothing_at_the_coordinator() -> None:
    with training() as (cluster, worker, _, server, own):
        for role, stolen in (("server", server), ("worker", own), ("observer", own)):
            for routing_id in (b"", b"z" + stolen):
                with stranger(cluster.address, routing_id) as thief:
                    refused(thief.ask(hello(role, stolen)), IdentityError)
                    assert thief.ask(Leave("closed")) == Left(), "nobody it knows has left"
        worker.push({"w": np.ones(4, np.float32)})
        assert worker.pull()["w"].tolist() == [-1.0] * 4
        members = ask_status(cluster.address)["members"]
        assert [member["role"] for member in members] == ["server", "worker"]


def test_a_server_keeps_nothing_of_who_has_no_ticket() -> None:
    with training() as (_, worker, endpoint, _, own):
        worker.push({"w": np.ones(4, np.float32)})
        zeros = np.zeros(4, np.float32)
        for number in range(0, 200, 20):  # one connection may say no more than so many
            with stranger(endpoint) as thief:
                for invented in range(number, number + 20):
                    refused(thief.ask(hello("worker", invented.to_bytes(16, "big"))), zmqps.errors.StaleEpochError)
        with stranger(endpoint) as thief:
            refused(thief.ask(hello("worker", own)), zmqps.errors.StaleEpochError)
            for message in (
                Load(1, 1, ((0, 0, ()),), (zeros,)),
                Push(1, 1, 1, 0, 0, 1, 0, 1, "raw", "raw", (), ((0, 0, ()),), (zeros + 1,)),
                Pull(1, 1, 1 << 40, 0, "raw", ((0, 0, ()),)),
            ):
                refused(thief.ask(message), NotJoinedError)
            assert not isinstance(thief.ask(Leave("closed")), Welcome)
        worker.push({"w": np.ones(4, np.float32)})
        assert worker.pull()["w"].tolist() == [-2.0] * 4


def test_the_clients_of_a_server_are_gone_with_their_workers() -> None:
    with training() as (cluster, worker, _, _, _):
        for _ in range(10):
            with zmqps.connect(cluster.address, observer=True) as observer:
                observer.pull()
        assert worker.pull()["w"].tolist() == [0.0] * 4
        run_blocking(inquire(cluster.address, timeout=PATIENCE, until=lambda status: _clients(status) == 1))


def _clients(status: Mapping[str, Any]) -> int:
    return sum(m["counters"].get("clients", 0) for m in status["members"] if m["role"] == "server")


def test_who_does_not_know_the_job_secret_neither_joins_nor_ends_a_job(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("0123456789abcdef0123456789abcdef\n")
    wrong.write_text("another one that is long enough\n")
    with zmqps.LocalCluster(zmqps.Servers(1, kernels="numpy"), security=zmqps.Security(job_secret=right)) as cluster:
        for secret in (None, wrong):
            for observer in (False, True):
                with pytest.raises(IdentityError, match="--job-secret"):
                    zmqps.connect(cluster.address, security=zmqps.Security(job_secret=secret), observer=observer)
        with zmqps.connect(cluster.address, security=zmqps.Security(job_secret=right)) as worker:
            worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
            for path in (None, wrong):
                with pytest.raises(IdentityError, match="--job-secret"):
                    end_job(cluster.address, "default", job_secret=path)
            worker.push({"w": np.ones(4, np.float32)})
            assert worker.pull()["w"].tolist() == [-1.0] * 4
            assert ask_status(cluster.address)["jobs"]["default"]["state"] == "training"
            assert "has ended" in end_job(cluster.address, "default", job_secret=right)


def servers_of(status: Mapping[str, Any]) -> list[str]:
    return [member["name"] for member in status["members"] if member["role"] == "server"]


@pytest.mark.processes
def test_nobody_else_is_a_server_of_a_cluster_that_one_command_started(tmp_path: Path) -> None:
    with zmqps.LocalCluster(
        zmqps.Servers(1, kernels="numpy"),
        limits=zmqps.Limits(heartbeat_interval=0.1, heartbeat_timeout=stretch(2.0)),
    ) as cluster:
        os.kill(cluster.pids["server-0"], signal.SIGKILL)
        run_blocking(inquire(cluster.address, timeout=PATIENCE, until=lambda status: not servers_of(status)))
        with stranger(cluster.address) as one:
            refused(one.ask(hello("server", b"x" * 16)), IdentityError)
        command = [f"--coordinator={cluster.address}", "--address=tcp://127.0.0.1:0", "--kernels=numpy"]
        elsewhere = {**os.environ, "TMPDIR": str(tmp_path)}  # it does not find the key, as another user's
        output = subprocess.run(
            node_command("server", *command),
            env=elsewhere,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert output.returncode == exits.FAILED
        assert "takes servers of the user that started it alone" in output.stdout + output.stderr
        with subprocess.Popen(node_command("server", *command, "--name=by-hand"), stdout=subprocess.DEVNULL) as server:
            try:
                done = inquire(
                    cluster.address, timeout=PATIENCE, until=lambda status: servers_of(status) == ["by-hand"]
                )
                run_blocking(done)
            finally:
                server.terminate()


@pytest.mark.processes
def test_a_worker_with_a_job_secret_takes_no_coordinator_that_does_not_know_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    with (
        InProcessCluster() as cluster,
        pytest.raises(IdentityError, match="does not show that it knows the job secret"),
    ):
        zmqps.connect(cluster.address, security=zmqps.Security(job_secret=secret))


@pytest.mark.parametrize("text", ["", "too short"])
def test_a_job_secret_that_can_be_guessed_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(zmqps.ConfigurationError, match="openssl rand"):
        zmqps.connect("tcp://127.0.0.1:1", security=zmqps.Security(job_secret=tmp_path / "secret"))
    with pytest.raises(zmqps.ConfigurationError, match="cannot read"):
        zmqps.LocalCluster(security=zmqps.Security(job_secret=tmp_path / "nothing"))


def test_a_worker_that_meets_another_clusters_server_is_told_and_sends_it_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hosts' servers on the same loopback port look like this to a worker of one of them."""
    with training() as (_, theirs, endpoint, _, _):
        make = inprocess.make_node

        def advertising(role: str, name: str, *rest: Any) -> tuple[Any, Any]:
            transport, identity = make(role, name, *rest)
            return transport, replace(identity, endpoint=endpoint) if role == "server" else identity

        monkeypatch.setattr(inprocess, "make_node", advertising)
        with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
            begun = time.monotonic()
            with pytest.raises(WrongPeerError, match="is not the server that the coordinator named"):
                worker.init({"w": np.ones(4, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
            assert time.monotonic() - begun < stretch(5)
        assert theirs.pull()["w"].tolist() == [0.0] * 4
