"""Channels between stages: in order, bounded, with somebody to name when nothing comes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zmq

import zmqps
from tests.pace import allow
from tests.ports import free_port
from zmqps import codecs, pipeline
from zmqps.errors import (
    AddressInUseError,
    ClosedError,
    ConfigurationError,
    DeadlineError,
    LimitError,
    PeerLostError,
    ProtocolError,
)

SECRET = "what both stages know"


@pytest.fixture
def both() -> Iterator[tuple[pipeline.Channel, pipeline.Channel]]:
    with (
        pipeline.bind("tcp://127.0.0.1:0", name="head", timeout=allow(20)) as head,
        pipeline.connect(head.endpoint, name="tail", timeout=allow(20)) as tail,
    ):
        yield head, tail


def test_arrays_go_both_ways_in_order(both: tuple[pipeline.Channel, pipeline.Channel]) -> None:
    def tail_end() -> None:
        for _ in range(30):
            x = tail.receive()["x"]
            x *= 2  # they are the receiver's
            tail.send({"dx": x, "count": np.int64(x.size)})

    head, tail = both
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(tail_end)
        x = np.empty((50, 300), np.float32)
        for number in range(10):
            for micro in range(3):  # micro-batches in flight
                x[:] = 10 * number + micro
                head.send({"x": x})  # and x may be written to
            for micro in range(3):
                answer = head.receive()
                assert (answer["dx"] == 2 * (10 * number + micro)).all()
                assert answer["count"] == x.size
        done.result(timeout=allow(20))
    assert "tail (" in head.peer
    assert "head (" in tail.peer


@pytest.mark.parametrize("codec", ["bf16", codecs.int8()])
def test_floats_travel_in_the_codec_of_the_channel_or_the_call(codec, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    x = np.random.default_rng(0).standard_normal((64, 100)).astype(np.float32)
    endpoint = f"ipc://{tmp_path}/channel"
    with (
        pipeline.connect(endpoint, secret=SECRET, codec=codec, timeout=allow(20)) as a,
        pipeline.bind(endpoint, secret=SECRET, timeout=allow(20)) as b,
    ):
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(lambda: (a.send({"x": x}), a.send({"x": x}, codec="raw")))
            encoded, exact = b.receive()["x"], b.receive()["x"]
            sending.result(timeout=allow(20))
    np.testing.assert_array_equal(exact, x)
    assert not np.array_equal(encoded, x)
    np.testing.assert_allclose(encoded, x, atol=0.03)


def test_an_array_of_many_frames_arrives_whole(both: tuple[pipeline.Channel, pipeline.Channel]) -> None:
    head, tail = both
    large = np.arange(5 << 20, dtype=np.float32)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(tail.receive)
        head.send({"large": large})
        np.testing.assert_array_equal(received.result(timeout=allow(20))["large"], large)


# --- waits --------------------------------------------------------------------------------------


def test_who_waits_for_nobody_is_told_where(tmp_path: Path) -> None:
    with pipeline.bind(f"ipc://{tmp_path}/a", timeout=0.05) as channel:
        with pytest.raises(DeadlineError, match=r"send timed out .* waiting for a stage to connect to ipc://"):
            channel.send({})
    with pipeline.connect(f"ipc://{tmp_path}/a", secret=SECRET, timeout=0.05) as channel:
        with pytest.raises(DeadlineError, match=r"receive timed out .* waiting for the stage at ipc://"):
            channel.receive()
        with pytest.raises(DeadlineError):
            channel.receive(timeout=0.05)


def meet(head: pipeline.Channel, tail: pipeline.Channel) -> None:
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(tail.receive)
        head.send({})
        assert received.result(timeout=allow(20)) == {}


def test_a_stage_that_says_nothing_is_named_and_later_still_heard(
    both: tuple[pipeline.Channel, pipeline.Channel],
) -> None:
    head, tail = both
    meet(head, tail)
    with pytest.raises(DeadlineError, match=r"waiting for stage tail \("):
        head.receive(timeout=0.05)
    tail.send({"x": np.ones(3)})
    assert head.receive()["x"].tolist() == [1, 1, 1]


def test_a_stage_that_does_not_read_holds_the_sender_up(both: tuple[pipeline.Channel, pipeline.Channel]) -> None:
    head, tail = both
    meet(head, tail)
    block = {"x": np.zeros(1 << 20, np.float32)}
    sent = 0

    def send_without_end() -> None:
        nonlocal sent
        while sent < 1000:
            head.send(block, timeout=0.3)
            sent += 1

    with pytest.raises(DeadlineError, match=r"send timed out .* waiting for stage tail"):
        send_without_end()
    assert sent < 100, "messages are bounded, so is the memory they take"
    assert all((tail.receive()["x"] == 0).all() for _ in range(sent)), "what was refused was not sent in part"
    head.send({"y": np.ones(1)})
    assert "y" in tail.receive()


STAGE = """
import sys, zmqps
with zmqps.pipeline.connect(sys.argv[1], name="mortal") as channel:
    channel.send(channel.receive())
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_killed_stage_is_named_and_so_is_that_it_was_started_again() -> None:
    def start(endpoint: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", STAGE, endpoint], stdin=subprocess.PIPE)

    with pipeline.bind("tcp://127.0.0.1:0", timeout=allow(20)) as channel:
        first = start(channel.endpoint)
        channel.send({"x": np.ones(2)})
        assert channel.receive()["x"].tolist() == [1, 1]
        first.kill()
        first.communicate()
        with pytest.raises(DeadlineError, match=rf"waiting for stage mortal \(.*pid {first.pid}"):
            channel.receive(timeout=0.1)
        second = start(channel.endpoint)
        with pytest.raises(PeerLostError, match=rf"stage mortal \(.*pid {first.pid}.*another one"):
            channel.receive()
        second.kill()
        second.communicate()


WAITING = """
import sys, numpy as np
from zmqps import pipeline
with pipeline.connect(sys.argv[1], name="tail", secret=sys.argv[2]) as channel:
    channel.send({"x": np.zeros(1)}, timeout=60.0)
    print(channel.receive(timeout=2.0)["x"], flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("end", ["bind", "connect"])
def test_a_stage_that_was_stopped_for_longer_than_its_timeout_waits_for_what_is_left(end: str) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    other = pipeline.bind if end == "connect" else pipeline.connect
    script = WAITING.replace("connect", end)
    with (
        other(endpoint, name="head", secret=SECRET, timeout=allow(20)) as head,
        subprocess.Popen([sys.executable, "-c", script, endpoint, SECRET], stdout=subprocess.PIPE) as stage,
    ):
        head.receive()
        stage.send_signal(signal.SIGSTOP)
        threading.Event().wait(4.0)
        stage.send_signal(signal.SIGCONT)
        threading.Event().wait(0.3)
        head.send({"x": np.ones(1)})
        assert stage.communicate(timeout=allow(20))[0] == b"[1.]\n"


# --- refused ------------------------------------------------------------------------------------


def test_what_cannot_be_used_is_refused_before_a_socket_is_left(tmp_path: Path) -> None:
    for endpoint in ("nowhere", "tcp://127.0.0.1", "udp://127.0.0.1:1"):
        with pytest.raises(ConfigurationError):
            pipeline.bind(endpoint)
        with pytest.raises(ConfigurationError):
            pipeline.connect(endpoint)
    with pytest.raises(ConfigurationError, match="topk"):
        pipeline.bind("tcp://127.0.0.1:0", codec="topk:fraction=0.1")
    with pytest.raises(ConfigurationError, match="timeout"):
        pipeline.bind("tcp://127.0.0.1:0", timeout=0)
    with pytest.raises(ConfigurationError, match="cannot bind"):
        pipeline.bind(f"ipc://{tmp_path}/no/such/folder")
    with pipeline.bind("tcp://127.0.0.1:0") as channel, pytest.raises(AddressInUseError):
        pipeline.bind(channel.endpoint)


def test_a_closed_channel_says_so() -> None:
    channel = pipeline.bind("tcp://127.0.0.1:0")
    channel.close()
    channel.close()
    with pytest.raises(ClosedError):
        channel.send({})
    with pytest.raises(ClosedError):
        channel.receive()
    assert "closed" in repr(channel)


def test_what_is_refused_at_the_sender_takes_no_number(both: tuple[pipeline.Channel, pipeline.Channel]) -> None:
    head, tail = both
    meet(head, tail)
    with pytest.raises(ConfigurationError):
        head.send({"x": None})
    with pytest.raises(LimitError):
        head.send({str(i): np.zeros(0) for i in range(2000)})
    head.send({"x": np.ones(1)})
    assert tail.receive()["x"].tolist() == [1]


# --- the secret ---------------------------------------------------------------------------------


def test_the_end_that_binds_makes_a_secret_where_there_is_none(both: tuple[pipeline.Channel, pipeline.Channel]) -> None:
    head, tail = both
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+#[0-9a-f]{32}", head.endpoint)
    assert tail.endpoint == head.endpoint
    assert "#" not in repr(head) + repr(tail), "it is not shown in errors"
    meet(head, tail)


def test_a_secret_is_found_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZMQPS_CHANNEL_SECRET", SECRET)
    endpoint = f"ipc://{tmp_path}/channel"
    with pipeline.bind(endpoint, timeout=allow(20)) as head, pipeline.connect(endpoint, timeout=allow(20)) as tail:
        assert head.endpoint == endpoint
        meet(head, tail)
    with pipeline.bind(endpoint, secret="another one, by the call", timeout=allow(20)) as head:
        with pipeline.connect(endpoint, secret="another one, by the call", timeout=allow(20)) as tail:
            meet(head, tail)
        with (
            pipeline.connect(endpoint, timeout=allow(20)) as tail,
            pytest.raises(ConfigurationError, match="another secret"),
        ):
            tail.receive()


def test_who_connects_without_a_secret_is_told_where_it_is() -> None:
    with pytest.raises(ConfigurationError, match=r"channel\.endpoint.* ZMQPS_CHANNEL_SECRET"):
        pipeline.connect("tcp://127.0.0.1:5999")
    with pytest.raises(ConfigurationError, match="16 characters"):
        pipeline.connect("tcp://127.0.0.1:5999", secret="short")
    with pytest.raises(ConfigurationError, match="16 characters"):
        pipeline.bind("tcp://127.0.0.1:0", secret="")


def test_a_stage_with_another_secret_is_told_and_harms_nobody(
    both: tuple[pipeline.Channel, pipeline.Channel], caplog: pytest.LogCaptureFixture
) -> None:
    head, tail = both
    meet(head, tail)
    where = head.endpoint.partition("#")[0]
    with pipeline.connect(where, secret=SECRET, timeout=allow(20)) as stranger:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=f"{where} refused this one.*give both the same"):
                stranger.receive()
        with pytest.raises(ConfigurationError):
            stranger.send({"x": np.ones(3)})
    for number in range(20):
        head.send({"x": np.full(3, number)})
        assert tail.receive()["x"].tolist() == [number] * 3
        tail.send({"x": np.full(3, -number)})
        assert head.receive()["x"].tolist() == [-number] * 3
    assert f"{where}: refused a peer that does not know the channel's secret" in caplog.text
    assert head.endpoint.partition("#")[2] not in caplog.text


def test_a_message_that_was_lost_is_noticed(both: tuple[pipeline.Channel, pipeline.Channel]) -> None:
    head, tail = both
    meet(head, tail)
    head._num_sent += 1  # as if one had been on its way when the connection broke
    head.send({})
    with pytest.raises(ProtocolError, match="sent message 3, expected 2"):
        tail.receive()


def test_it_is_a_public_module() -> None:
    assert zmqps.pipeline is pipeline


def test_beyond_this_host_a_channel_is_encrypted() -> None:
    with pipeline.bind("tcp://0.0.0.0:0", timeout=allow(30.0)) as here:
        port, _, token = here.endpoint.rpartition(":")[2].partition("#")
        with pipeline.connect(f"tcp://127.0.0.1:{port}#{token}", timeout=allow(30.0)) as there:
            sender = threading.Thread(target=there.send, args=({"x": np.arange(3)},))
            sender.start()
            assert here.receive()["x"].tolist() == [0, 1, 2]
            sender.join()
            assert there._pair._socket.getsockopt(zmq.MECHANISM) == zmq.CURVE  # type: ignore[attr-defined]
        with pipeline.connect(f"tcp://127.0.0.1:{port}", secret="0" * 32, timeout=allow(30.0)) as stranger:
            with pytest.raises(ConfigurationError, match="another secret"):
                stranger.receive()
