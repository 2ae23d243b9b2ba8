"""How long tests may wait: several times as long as they take, and longer on a machine that is slow or busy."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import zmqps
from tests import pace
from tests.imports import ROOT
from tests.nested import run_pytest
from tests.tables import for_each


@for_each(
    "slowness, load, allowed, stretched",
    [(1.0, 0.0, 4.0, 1.0), (1.0, 1.5, 4.0, 1.5), (1.0, 4.0, 8.0, 4.0), (3.0, 0.5, 6.0, 3.0), (1.0, 99.0, 20.0, 10.0)],
)
def test_limits_are_generous_and_grow_with_what_was_measured_and_with_the_load(
    monkeypatch: pytest.MonkeyPatch, slowness: float, load: float, allowed: float, stretched: float
) -> None:
    monkeypatch.setattr(pace, "SLOWNESS", slowness)
    monkeypatch.setattr(pace, "load", lambda: load)
    assert (pace.allow(1.0), pace.stretch(1.0)) == (allowed, stretched)


def test_it_is_measured_once_and_all_processes_of_a_run_are_told() -> None:
    command = [sys.executable, "-c", "import tests.pace; print(tests.pace.SLOWNESS)"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), pace.VARIABLE: "7.5"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=pace.allow(20), check=True)
    assert done.stdout == "7.5\n"
    assert os.environ[pace.VARIABLE] == f"{pace.SLOWNESS:.2f}"


def test_what_the_package_waits_by_default_is_no_limit_of_a_test() -> None:
    assert inspect.unwrap(zmqps.aio.connect) is inspect.unwrap(zmqps.connect), "it has no default of its own"
    for function, usual in ((zmqps.connect, 10.0), (zmqps.LocalCluster, 30.0)):
        assert inspect.signature(function).parameters["timeout"].default >= pace.MARGIN * usual


@pytest.mark.repeats
@pytest.mark.parametrize(("seconds", "code"), [(0.3, 0), (60.0, 1)])
def test_the_timeout_of_a_test_is_scaled_and_a_hang_is_still_one(tmp_path: Path, seconds: float, code: int) -> None:
    program = f"import threading\n\ndef test_it():\n    threading.Event().wait({seconds})\n"
    said = run_pytest(tmp_path, program, "--timeout", "0.2", code=code)
    assert ("Timeout (>" in said) == bool(code)
