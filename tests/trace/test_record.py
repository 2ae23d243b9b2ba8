"""Recording: nothing when off, every phase when on, and no file that grows for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import zmqps
from zmqps.cli.main import cli
from zmqps.codecs import bf16
from zmqps.core.protocol.encoding import CODING
from zmqps.core.protocol.messages import Heartbeat, Push
from zmqps.core.protocol.wire import encode, peek
from zmqps.core.worker.extensions import SessionMachine
from zmqps.net.identity import new_identity
from zmqps.net.zeromq import ZmqTransport
from zmqps.trace import VARIABLE, merge, record
from zmqps.trace.phases import summarize


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Record into it, in this process and those it starts."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "trace"))
    record.recorder.cache_clear()
    yield tmp_path / "trace"
    record.recorder.cache_clear()


def test_without_the_variable_nothing_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    record.recorder.cache_clear()
    identity = new_identity("worker")
    machine, transport = SessionMachine(identity, "tcp://127.0.0.1:1"), ZmqTransport()
    try:
        assert record.watch(machine, transport, identity) == (machine, transport)
        assert record.around("check", "worker", len) is len
        coding = record.watched_coding()
        assert (coding.compress, coding.decompress) == CODING
    finally:
        transport.close(0)


@pytest.mark.processes
def test_a_job_is_recorded_in_all_its_processes(directory: Path) -> None:
    gradients = {"w": np.ones(1_200_000, np.float32), "b": np.ones(3, np.float32)}
    cluster = zmqps.LocalCluster(kernels="numpy", heartbeat_timeout=60.0)
    with cluster, zmqps.connect(cluster.address) as worker:
        worker.init(gradients, optimizer=zmqps.optim.sgd(0.5), push_codec="bf16")
        for _ in range(2):
            values = worker.push_pull(gradients)
        worker.finish()
    assert values["w"][0] == 0.0  # watched, it does what it always does
    trace = merge.read(directory)
    assert [process.name.split()[0] for process in trace.processes] == ["coordinator", "server", "worker"]
    summary = summarize(trace, skip=1)
    assert summary is not None
    assert (summary.operation, summary.steps) == ("push_pull", 1)
    counts = {(phase.role, phase.name): phase.count for phase in summary.phases}
    for phase in (
        ("worker", "queue"), ("worker", "encode"), ("worker", "send"), ("wire", "wire there"), ("server", "serve"),
        ("server", "decode"), ("server", "reply"), ("wire", "wire back"), ("worker", "land"),
    ):  # fmt: skip
        assert counts[phase] >= 2, phase  # 4.8 MB are two slices; on a busy machine one may be sent again
    assert counts["server", "apply"] == 2
    shown = CliRunner().invoke(cli, ["trace", str(directory), "--skip", "1", "--output", str(directory / "one")])
    assert shown.exit_code == 0, shown.output
    assert "1 × push_pull" in shown.output
    assert json.loads((directory / "one").read_text())["traceEvents"]


def test_a_file_ends_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_SPANS", 10)
    monkeypatch.setattr(record, "FLUSHED_SPANS", 4)
    recorder = record.Recorder(tmp_path)
    recorder.name("test")
    for i in range(50):
        recorder.span("work", "worker", i, i + 1, "b" if i % 2 else "X")
    recorder.flush()
    [process] = merge.read(tmp_path).processes
    assert [span.begin_us for span in process.spans] == pytest.approx([i / 1e3 for i in range(10)])


def test_what_is_noted_returns_and_raises_as_before(tmp_path: Path) -> None:
    recorder = record.Recorder(tmp_path)
    assert recorder.around("sum", "worker", sum)([1, 2]) == 3
    with pytest.raises(TypeError):
        recorder.around("sum", "worker", sum)(None)
    recorder.flush()
    assert len(merge.read(tmp_path).processes[0].spans) == 2


def test_a_codec_is_noted_where_it_works(directory: Path) -> None:
    recorder = record.recorder()
    assert recorder is not None
    array = np.ones(9, np.float32)
    coding = record.watched_coding()
    blobs = coding.compress(bf16(), [[array]])
    assert (coding.decompress(bf16(), blobs, [(9, array.dtype)])[0] == array).all()
    CODING.compress(bf16(), [[array]])  # somebody else's, which nobody watches
    recorder.flush()
    assert [span.name for span in merge.read(directory).processes[0].spans] == ["encode", "decode"]


def test_peeking_tells_what_a_message_is() -> None:
    push = Push(17, 1, 1, 0, 0, 1, 1, 0, "raw", "raw", (), [(0, 0, ())], [np.zeros(9, np.float32)])
    assert peek(encode(push)) == ("Push", 17)
    assert peek(encode(Heartbeat({}))) == ("Heartbeat", 0)
