"""pytest in pytest: a file of tests that is run by a process of its own, with what every test here gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.imports import ROOT
from tests.pace import allow

_PLUGINS = ("-p", "tests.conftest", "-p", "no:cacheprovider")


def run_pytest(folder: Path, program: str, *options: str, code: int, **variables: str) -> str:
    """Run a text as a test file with a folder as the working directory; return what was said.

    Parameters
    ----------
    code
        What pytest must return.
    variables
        Of the environment.
    """
    (folder / "test_it.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *_PLUGINS, *options, "test_it.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, capture_output=True, text=True,
        timeout=allow(60), check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
