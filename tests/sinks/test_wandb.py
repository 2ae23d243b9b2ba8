"""The files of Weights & Biases in its offline mode, read back record by record."""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zmqps.errors import ConfigurationError
from zmqps.sinks.wandb import WeightsAndBiases

BLOCK_NBYTES = 32768
#: Of the file, and of each fragment of a record.
HEAD_NBYTES = 7
WHOLE, LAST = 1, 4


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    module = pytest.importorskip("wandb")
    yield module
    module.teardown()


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a file, which has the format of LevelDB's logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, body = path.read_bytes(), HEAD_NBYTES, b""
    assert data.startswith(b":W&B")
    while at < len(data):
        left = BLOCK_NBYTES - at % BLOCK_NBYTES
        if left < HEAD_NBYTES:
            at += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, at)
        at += HEAD_NBYTES
        assert zlib.crc32(data[at - 1 : at + length]) == checksum
        body += data[at : at + length]
        at += length
        if kind in (WHOLE, LAST):
            yield Record.FromString(body)
            body = b""


def runs(folder: Path) -> dict[str, tuple[Any, list[dict[str, float]]]]:
    """Return by its name each run in a folder, and its rows without what the library adds."""
    found = {}
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        rows, run, kinds = [], None, set()
        for record in records(path):
            kinds.add(record.WhichOneof("record_type"))
            if record.HasField("run"):
                run = record.run
            if record.HasField("history"):
                row = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                rows.append({key: value for key, value in row.items() if key not in ("_runtime", "_step")})
        assert run is not None
        assert kinds.isdisjoint({"output", "output_raw", "stats"}), "what the coordinator prints, and its load"
        assert "exit" in kinds
        found[run.display_name] = run, rows
    return found


def test_a_job_is_a_group_and_a_worker_a_run(wandb: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sink = WeightsAndBiases("team/project")
    sink.values("j", "worker 1", 3, 8.5, {"loss": 0.5, "top 5/accuracy": 0.25})
    sink.values("j", "worker 1", 2, 9.5, {"loss": math.inf})  # as of a worker that has restarted
    sink.values("j", "worker 1", 2, 9.75, {"accuracy": 0.125})
    sink.values("j", "worker 0", None, 10.0, {"loss": 1.0})
    print("in no run")
    sink.values("j", "worker 0", None, 11.0, {"loss": 2.0, "step": 7.0})
    sink.flush()
    sink.close()
    found = runs(tmp_path)
    assert {(run.entity, run.project, run.run_group) for run, _ in found.values()} == {("team", "project", "j")}
    assert {name: rows for name, (_, rows) in found.items()} == {
        "worker 0": [
            {"loss": 1.0, "step": 0, "_timestamp": 10.0},
            {"loss": 2.0, "step": 7.0, "_timestamp": 11.0},
        ],
        "worker 1": [
            {"loss": 0.5, "top 5/accuracy": 0.25, "step": 3, "_timestamp": 8.5},
            {"loss": math.inf, "step": 2, "_timestamp": 9.5},
            {"accuracy": 0.125, "step": 2, "_timestamp": 9.75},
        ],
    }
    assert "WARNING" not in capfd.readouterr().err


def test_a_run_that_cannot_begin_is_an_error_that_says_why(wandb: Any) -> None:
    sink = WeightsAndBiases("project#1")
    for _ in range(2):
        with pytest.raises(Exception, match="project"):
            sink.values("j", "worker 0", 0, 1.0, {"a": 1.0})
    sink.close()


def test_without_it_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[wandb\]'"):
        WeightsAndBiases("project")
