"""Which tests are run: what a command names, and by default not those that take long or need much."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.imports import ROOT
from tests.pace import allow

pytestmark = pytest.mark.repeats  # each collects tests in a process of its own

#: All of its tests are left out by default.
FILE = "tests/cli/test_nodes.py"


def collected(*arguments: str) -> list[str]:
    """Return the files of the tests that pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=allow(60), check=False)
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout + done.stderr
    return [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]


def test_what_a_file_holds_is_run_when_the_file_is_named_and_not_with_its_folder() -> None:
    assert len(collected(FILE)) > 10
    assert len(collected(f"{FILE}::test_binding_beyond_this_host_is_refused")) == 1
    assert FILE not in collected("tests/cli")
    both = collected("tests/top", FILE)
    assert FILE in both
    assert "tests/top/test_app.py" not in both, "its folder is named, and it is left out by default"


def test_an_expression_of_ones_own_selects_in_a_named_file_too() -> None:
    assert collected(FILE, "-m", "slow") == []
