"""``zmqps trace`` where nobody looks on."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from click.testing import CliRunner

from zmqps.cli.trace import trace
from zmqps.nodes import tracing


class Enough(Exception):
    """Nothing is to be shown."""


@pytest.mark.parametrize("looks_on", [False, True])
def test_progress_is_for_who_looks_on(looks_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*_: object, progress: Any, **__: object) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: looks_on)
        progress("3 of 5 nodes")
        raise Enough

    monkeypatch.setattr(tracing, "record", record)
    ended = CliRunner().invoke(trace, ["--coordinator", "tcp://127.0.0.1:1"])
    assert isinstance(ended.exception, Enough)
    assert ("3 of 5 nodes" in ended.stderr) == looks_on
