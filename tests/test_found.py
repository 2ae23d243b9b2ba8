"""What `make test-random` leaves of an example that fails, and that `make test` draws the same ones each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import ROOT
from tests.pace import allow

pytestmark = pytest.mark.repeats  # each runs pytest in processes of its own

PROGRAM = """if True:
    from hypothesis import given, strategies

    @given(strategies.integers(0, 10**9))
    def test_numbers_are_small(number: int) -> None:
        with open("drawn.txt", "a") as file:
            print(number, file=file)
        assert number < 1000
    """


def run(directory: Path, profile: str) -> tuple[str, list[str]]:
    """Run a test that fails, in a process; return what was said and the numbers it was tried with."""
    (directory / "test_numbers.py").write_text(PROGRAM)
    drawn = directory / "drawn.txt"
    drawn.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "test_numbers.py",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HYPOTHESIS_PROFILE": profile}
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=allow(60), check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout, drawn.read_text().split()


def test_a_random_example_that_fails_is_written_down_and_is_tried_first_the_next_time(tmp_path: Path) -> None:
    said, _ = run(tmp_path, "random")
    written = (tmp_path / "runs" / "random" / "failures.txt").read_text()
    assert "test_numbers_are_small" in written
    assert "number=1000" in written
    assert "@reproduce_failure(" in written
    assert written in said
    assert str(tmp_path / "runs" / "random") in said
    assert run(tmp_path, "random")[1][0] == "1000"


def test_by_default_the_same_examples_are_drawn_each_time(tmp_path: Path) -> None:
    assert run(tmp_path, "default")[1] == run(tmp_path, "default")[1]
    assert not (tmp_path / "runs").exists()
