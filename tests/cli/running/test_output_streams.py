"""Terminals that lack characters, and streams that are closed: no command fails, and nothing is lost."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE, environment
from zmqps.cli.running.output import Terminal, make_legible
from zmqps.core.protocol import exits
from zmqps.logs.lines import read_message

UP = ("up", "--address", "tcp://127.0.0.1:0", "--kernels", "numpy")
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NARROW = [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, C_LOCALE]
#: Writes what ASCII and Latin-1 lack, and fails.
SAYS = "import os; os.write(1, 'one \\u2588 \\u2026 \\u65e5\\n'.encode()); raise SystemExit(3)"


def test_what_an_encoding_lacks_has_a_form_in_ascii() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "ascii", write_through=True)
    make_legible(stream)
    stream.write("a … █ • 5 µs → é 日 \udc80")
    assert written.getvalue() == b"a ... # * 5 us -> ? ? ?"


def test_a_terminal_goes_on_after_a_character_that_it_lacks() -> None:
    written = io.BytesIO()
    terminal = Terminal(io.TextIOWrapper(written, "latin-1", write_through=True))
    terminal.show("a | █")
    terminal.show("a | the failure")
    terminal.close()
    assert written.getvalue().splitlines()[-1].endswith(b"the failure")


@pytest.mark.processes
@pytest.mark.parametrize("variables", NARROW, ids=["ascii", "latin-1", "C"])
def test_a_failure_is_shown_whatever_the_terminal_lacks(
    variables: dict[str, str], zmqps: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    ended = zmqps(*UP, "--workers", "1", "--", "python", "-c", SAYS, **variables)
    assert ended.returncode == exits.WORKERS_FAILED
    assert "one # ... ?" in ended.stdout
    assert "worker-0 failed with exit code 3" in ended.stdout
    assert "1 of 1 worker failed" in ended.stdout


@pytest.mark.processes
def test_every_look_at_a_cluster_is_legible_whatever_the_terminal_lacks(
    zmqps: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    started = zmqps(*UP, "--detach")
    assert started.returncode == exits.OK, started.stderr
    try:
        for command in ("status", "health", "logs", "explain Z002", "up --help", "stack coordinator", "doctor --quick"):
            looked = zmqps(*command.split(), **NARROW[len(command) % len(NARROW)])
            assert looked.stdout, (command, looked.stderr)
            assert "Traceback" not in looked.stderr, command
    finally:
        zmqps("down")


@pytest.mark.processes
@pytest.mark.parametrize("variables", NARROW, ids=["ascii", "latin-1", "C"])
def test_a_table_is_legible_whatever_the_terminal_lacks(
    variables: dict[str, str], zmqps: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    looked = zmqps("doctor", "--quick", **variables)
    assert "versions" in looked.stdout, looked.stderr
    assert "Traceback" not in looked.stderr


@pytest.mark.processes
def test_a_cluster_runs_and_ends_with_its_output_closed(tmp_path: Path) -> None:
    closing = 'exec "$@" <&- >&- 2>&-'
    command = [sys.executable, "-m", "zmqps", *UP, "--workers", "1", "--", "python", "-c", SAYS]
    ended = subprocess.run(
        ["sh", "-c", closing, "sh", *command], cwd=tmp_path, env=environment(), timeout=PATIENCE, check=False
    )
    assert ended.returncode == exits.WORKERS_FAILED
    log = (tmp_path / "runs" / "cluster" / "logs" / "worker-0.log").read_text("utf-8")
    assert "one █ … 日" in map(read_message, log.splitlines())
    assert "failed with exit code 3" in (tmp_path / "runs" / "cluster" / "logs" / "supervisor.log").read_text("utf-8")


@pytest.mark.processes
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("command", ["--help", "nonsense"])
def test_a_command_ends_in_order_with_streams_closed(closed: str, command: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "zmqps", command], cwd=tmp_path,
        env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == (exits.OK if command == "--help" else exits.USAGE)
    assert "Traceback" not in ended.stderr


@pytest.mark.processes
def test_a_configuration_file_is_utf_8_in_every_locale(
    zmqps: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "cluster.toml").write_text('# größer\n[up]\nname = "größe"\n', "utf-8")
    helped = zmqps("--config", "cluster.toml", "up", "--help", **C_LOCALE)
    assert helped.returncode == exits.OK, helped.stderr
