"""Uncaught errors of a script: without the frames of zmqps, with all that the script has to do with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import zmqps
from tests.imports import ROOT
from tests.pace import allow
from tests.tables import one_in
from zmqps.logs.uncaught import VARIABLE, brief

NOBODY = "tcp://127.0.0.1:1"


def run(script: str, folder: Path, **variables: str) -> list[str]:
    """Return the lines of standard error of a script that fails."""
    path = folder / "script.py"
    path.write_text(script)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ZMQPS_", "PYTHONASYNCIODEBUG"))}
    ended = subprocess.run(
        [sys.executable, str(path)], env={**env, "PYTHONPATH": str(ROOT), **variables}, capture_output=True, text=True,
        timeout=allow(60.0), check=False,
    )  # fmt: skip
    assert ended.returncode != 0
    return ended.stderr.splitlines()


CONNECTS = f"""import zmqps
def begin():
    zmqps.connect("{NOBODY}", timeout=0.1)
begin()
"""


def test_an_error_is_shown_without_frames_of_zmqps(tmp_path: Path) -> None:
    said = run(CONNECTS, tmp_path)
    files = [line for line in said if line.startswith("  File ")]
    assert [line.split('"')[1] for line in files] == [str(tmp_path / "script.py")] * 2
    assert any(line.startswith("zmqps.errors.DeadlineError: connect timed out") for line in said)
    assert len(said) <= 9


@pytest.mark.repeats
def test_all_of_it_is_shown_where_that_is_asked_for(tmp_path: Path) -> None:
    said = run(CONNECTS, tmp_path, **{VARIABLE: "1"})
    assert sum("/zmqps/" in line for line in said) > 1


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    tries = "\ntry: begin()\nexcept zmqps.PSError:\n    raise KeyboardInterrupt"
    said = run(CONNECTS.replace(NOBODY, "nothing at all").replace("\nbegin()", tries), tmp_path)
    assert said == [f"KeyboardInterrupt in {tmp_path / 'script.py'}, line 6"]


@pytest.mark.parametrize("begins", one_in(2, ["connect", "LocalCluster"]))
def test_ctrl_c_during_the_import_of_zmqps_is_one_line_too(begins: str, tmp_path: Path) -> None:
    script = f"""import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name in ("zmqps.worker", "zmqps.launch.cluster"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
import zmqps
zmqps.{begins}()
"""
    assert run(script, tmp_path) == [f"KeyboardInterrupt in {tmp_path / 'script.py'}, line 5"]


@pytest.mark.repeats
def test_an_error_in_a_thread_of_the_script_is_shown_so_too(tmp_path: Path) -> None:
    begins = "\nimport threading\nthread = threading.Thread(target=begin)\nthread.start()\nthread.join()\n1 / 0"
    script = CONNECTS.replace("\nbegin()", begins)
    said = run(script, tmp_path)
    assert any(line.startswith("Exception in thread Thread-1") for line in said)
    assert not any(f"{ROOT}/zmqps/" in line for line in said)


@pytest.mark.repeats
def test_who_shows_errors_already_goes_on_doing_so(tmp_path: Path) -> None:
    hook = "import sys\nsys.excepthook = lambda kind, error, trace: print('mine', kind.__name__, file=sys.stderr)\n"
    assert run(hook + CONNECTS, tmp_path) == ["mine DeadlineError"]


def test_an_error_of_another_kind_keeps_all_its_frames() -> None:
    assert brief(raised(AssertionError("a fault inside"))) is None


def raised(error: BaseException, before: BaseException | None = None) -> BaseException:
    """Return an error that this very file has raised, while another one was handled."""
    try:
        try:
            if before is not None:
                raise before
        finally:
            raise error
    except BaseException as caught:
        return caught


def test_what_the_script_handled_before_stays() -> None:
    text = brief(raised(zmqps.ConfigurationError("no"), ZeroDivisionError("the script's own")))
    assert text is not None
    assert "the script's own" in text
    assert "ConfigurationError: no" in text


def test_an_error_of_the_script_about_ours_leaves_our_frames_out() -> None:
    try:
        try:
            zmqps.connect("nothing at all")
        except zmqps.ConfigurationError as error:
            raise RuntimeError("my job cannot begin") from error
    except RuntimeError as error:
        text = brief(error)
    assert text is not None
    assert "my job cannot begin" in text
    assert f"{ROOT}/zmqps/" not in text
    assert __file__ in text
