"""What `make test-random` leaves of an example that fails, and that `make test` draws the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nested import run_pytest

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
    drawn = directory / "drawn.txt"
    drawn.unlink(missing_ok=True)
    said = run_pytest(directory, PROGRAM, code=1, HYPOTHESIS_PROFILE=profile)
    return said, drawn.read_text().split()


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
