"""JSON lines: what is written, that any reader takes it, and that a file is gone on with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from zmqps.errors import ConfigurationError
from zmqps.sinks.jsonl import JsonLines


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_each_call_is_a_line(tmp_path: Path) -> None:
    sink = JsonLines(str(tmp_path / "new" / "log.jsonl"))
    sink.values("default", "worker 2", 12, 1764098765.125, {"loss": 0.25, "größe": 3.0})
    sink.values("default", "worker 0", None, 1764098766.0, {"loss": 0.5})
    sink.close()
    assert lines(tmp_path / "new" / "log.jsonl") == [
        {
            "time": 1764098765.125, "job": "default", "node": "worker 2", "step": 12,
            "values": {"loss": 0.25, "größe": 3.0},
        },
        {"time": 1764098766.0, "job": "default", "node": "worker 0", "step": None, "values": {"loss": 0.5}},
    ]  # fmt: skip


def test_what_json_does_not_know_is_a_text_that_float_reads(tmp_path: Path) -> None:
    sink = JsonLines(str(tmp_path / "log.jsonl"))
    sink.values("j", "worker 0", 0, 0.0, {"a": math.nan, "b": math.inf, "c": -math.inf})
    sink.close()
    [line] = lines(tmp_path / "log.jsonl")
    values = line["values"]
    assert values == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}
    assert [float(values[name]) for name in "bc"] == [math.inf, -math.inf]  # type: ignore[index]


def test_a_reader_sees_it_when_it_is_flushed(tmp_path: Path) -> None:
    sink = JsonLines(str(tmp_path / "log.jsonl"))
    sink.values("j", "worker 0", 0, 0.0, {"a": 1.0})
    assert lines(tmp_path / "log.jsonl") == []
    sink.flush()
    assert len(lines(tmp_path / "log.jsonl")) == 1
    sink.close()


@pytest.mark.parametrize(("before", "number"), [(b'{"a": 1}\n', 1), (b'{"a": 1}\n{"cut o', 2), (b"", 0)])
def test_a_file_that_is_there_is_gone_on_with_behind_a_line_that_was_cut_off(
    tmp_path: Path, before: bytes, number: int
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(before)
    sink = JsonLines(str(path))
    sink.values("j", "worker 0", 3, 0.0, {"a": 1.0})
    sink.close()
    found = path.read_text().splitlines()
    assert len(found) == number + 1
    assert json.loads(found[-1])["step"] == 3
    assert path.read_bytes().startswith(before)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"--values jsonl:.*cannot be written"):
        JsonLines(str(tmp_path / "file" / "log.jsonl"))
    with pytest.raises(ConfigurationError, match="cannot be written"):
        JsonLines(str(tmp_path))
