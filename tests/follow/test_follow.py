"""``zmqps follow`` as a process, and readers of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
import zmqps.follow
from tests.cli.conftest import end, environment
from tests.inprocess import InProcessCluster
from tests.pace import allow
from zmqps.core.protocol.events import Stop
from zmqps.errors import (
    ClosedError,
    ConfigurationError,
    DeadlineError,
    DtypeError,
    KeyRefusedError,
    LimitError,
    ShapeError,
)
from zmqps.keys import directory as keys

DIM = 8
PATIENCE = allow(20.0)
TABLES = {"items": zmqps.table(DIM, optimizer=zmqps.optim.sgd(1.0), initial=zmqps.initial.normal(1.0))}

Follow = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        log = (tmp_path / f"follower-{len(started)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "zmqps", "follow", *arguments], env=environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
        log.close()
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        return process, line.rpartition(" ")[2].strip()

    yield begin
    for process in started:
        end(process)
        assert process.stdout is not None
        process.stdout.close()


def eventually(check: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < until
        time.sleep(0.01)


def joined(address: str, **options: Any) -> zmqps.Worker:
    worker = zmqps.connect(address, timeout=PATIENCE, **options)
    worker.init({}, tables=TABLES, mode="async", timeout=PATIENCE)
    return worker


@pytest.mark.processes
def test_readers_have_the_rows_through_a_kill_and_the_end_of_the_cluster(follow: Follow, tmp_path: Path) -> None:
    ids = np.array([[1, 2, 3], [1, 77, -5]])
    with InProcessCluster(servers=2) as cluster:
        with joined(cluster.address) as worker:
            items = worker.table("items")
            items.push(np.arange(100), np.ones((100, DIM), np.float32), timeout=PATIENCE)
            command = ("items", "--coordinator", cluster.address, "--every", "0.05", "--save-every", "0.1")
            command += ("--save", str(tmp_path / "copy"), "--log-level", "debug")
            process, address = follow(*command)
            with zmqps.follow.connect(address, timeout=PATIENCE) as lookups:
                assert np.array_equal(lookups.pull(ids), items.rows(ids))
                assert lookups.pull([]).shape == (0, DIM)
                items.push([1, 77, 500], np.ones((3, DIM), np.float32), timeout=PATIENCE)
                eventually(lambda: np.array_equal(lookups.pull(ids), items.rows(ids)))
                out = np.empty((2, 3, DIM), np.float16)
                assert lookups.pull(ids, out=out, codec="bf16") is out
                assert np.abs(out - items.rows(ids)).max() < 0.05
                version = lookups.version
                assert version > 0
                eventually((tmp_path / "copy" / "follower.json").exists)
                process.kill()
                process.wait(PATIENCE)
                process, again = follow(*command, "--address", address)
                assert again == address
                expected = items.rows(ids)
                eventually(lambda: np.array_equal(lookups.pull(ids), expected))  # over a new connection, by itself
                state = tmp_path / "copy" / "follower.json"
                eventually(lambda: json.loads(state.read_text())["version"] >= lookups.version)
                worker.finish(timeout=PATIENCE)
    with zmqps.follow.connect(address, timeout=PATIENCE) as lookups:  # the cluster is gone
        assert np.array_equal(lookups.pull(ids), expected)
        process.kill()
        process.wait(PATIENCE)
        follow(*command, "--address", address)
        assert np.array_equal(lookups.pull(ids), expected), "from the disk"
    assert "continuing from" in (tmp_path / "follower-1.log").read_text()


@pytest.mark.processes
def test_a_follower_that_is_asked_to_end_does_and_a_reader_says_that_nobody_answers(follow: Follow) -> None:
    with InProcessCluster(servers=1) as cluster, joined(cluster.address) as worker:
        worker.table("items").push([1], np.ones((1, DIM), np.float32), timeout=PATIENCE)
        process, address = follow("items", "--coordinator", cluster.address)
        with zmqps.follow.connect(address, timeout=PATIENCE) as lookups:
            lookups.pull([1])
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
            with pytest.raises(DeadlineError, match="the follower at"):
                lookups.pull([1], timeout=0.2)
        with pytest.raises(ClosedError):
            lookups.pull([1])


@pytest.mark.processes
def test_with_keys_a_reader_needs_one(follow: Follow, tmp_path: Path) -> None:
    keys.create(tmp_path / "keys")
    token = keys.token(tmp_path / "keys", "observer")
    with InProcessCluster(servers=1, keys=tmp_path / "keys") as cluster:
        with joined(cluster.address, security=zmqps.Security(keys=tmp_path / "keys")) as worker:
            items = worker.table("items")
            items.push([1], np.ones((1, DIM), np.float32), timeout=PATIENCE)
            _, address = follow("items", "--coordinator", cluster.address, "--keys", str(tmp_path / "keys"))
            with zmqps.follow.connect(address, token=token, timeout=PATIENCE) as lookups:
                assert np.array_equal(lookups.pull([1, 2]), items.rows([1, 2]))
            keys.create(tmp_path / "others")
            for strange in ({"keys": tmp_path / "others"}, {}):
                with zmqps.follow.connect(address, timeout=PATIENCE, **strange) as stranger:  # type: ignore[arg-type]
                    with pytest.raises(KeyRefusedError):
                        stranger.pull([1])


def test_what_cannot_be_asked_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ConfigurationError, match="endpoint"):
        zmqps.follow.connect("nowhere")
    with zmqps.follow.connect("tcp://127.0.0.1:9", timeout=PATIENCE) as lookups:
        with pytest.raises(DtypeError):
            lookups.pull([1.5])
        with pytest.raises(ConfigurationError, match="topk"):
            lookups.pull([1], codec="topk")
        with pytest.raises(DeadlineError, match="accept the connection"):
            lookups.pull([1], timeout=0.05)


def test_a_lookup_that_meets_the_end_of_its_connection_says_that_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with zmqps.follow.connect("tcp://127.0.0.1:9", timeout=PATIENCE) as lookups:
        submit = lookups._thread.submit
        monkeypatch.setattr(lookups._thread, "submit", lambda event: submit(Stop("closed")))  # which comes first
        with pytest.raises(ClosedError, match="was closed"):
            lookups.pull([1])


def test_a_connection_may_be_collected_in_its_own_thread() -> None:
    with zmqps.follow.connect("tcp://127.0.0.1:9", timeout=PATIENCE) as lookups:
        thread, collected = lookups._thread, Future[None]()
        assert thread._loop is not None
        thread._loop.call_soon_threadsafe(lambda: collected.set_result(thread.let_go()))  # type: ignore[func-returns-value]
        collected.result(PATIENCE)
        thread.join()
        assert thread.ended


@pytest.mark.processes
def test_a_follower_that_waits_for_the_cluster_ends_at_once(follow: Follow, tmp_path: Path) -> None:
    process, _ = follow("items", "--coordinator", "tcp://127.0.0.1:9", "--address", "tcp://127.0.0.1:0")
    eventually(lambda: "no answer from the coordinator" in (tmp_path / "follower-0.log").read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(allow(10.0)) == 128 + signal.SIGINT


@pytest.mark.processes
def test_limits_and_shapes_are_said(follow: Follow) -> None:
    with InProcessCluster(servers=1) as cluster, joined(cluster.address) as worker:
        worker.table("items").push([1], np.ones((1, DIM), np.float32), timeout=PATIENCE)
        _, address = follow("items", "--coordinator", cluster.address, "--rows", "int8")
        with zmqps.follow.connect(address, timeout=PATIENCE) as lookups:
            with pytest.raises(ShapeError, match="out"):
                lookups.pull([1], out=np.empty((2, DIM)))
            with pytest.raises(LimitError, match="one lookup"):
                lookups.pull(np.zeros((256 << 20) // (4 * DIM), np.int64))
            assert lookups.pull([1]).shape == (1, DIM)
