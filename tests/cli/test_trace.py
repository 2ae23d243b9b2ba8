"""``zmqps trace`` where nobody looks on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tests.ports import reserved_port
from zmqps.cli.trace import trace
from zmqps.errors import DeadlineError
from zmqps.nodes import inquiry, tracing


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


@pytest.mark.parametrize("ask", [tracing.record, tracing.fetch])
def test_a_port_where_nobody_listens_is_soon_said(ask: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "ANSWER_S", 1.5)
    begun = time.monotonic()
    with reserved_port() as port, pytest.raises(DeadlineError, match=r"^trace.*no process listens at that port"):
        ask(f"tcp://127.0.0.1:{port}")
    assert time.monotonic() - begun < 0.5 * tracing.FETCH_S


def test_the_end_of_a_job_that_nobody_can_be_asked_for_is_said_of_that_end() -> None:
    with reserved_port() as port, pytest.raises(DeadlineError, match=r"^jobs end timed out"):
        inquiry.end_job(f"tcp://127.0.0.1:{port}", "default", timeout=0.2)
