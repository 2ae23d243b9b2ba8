"""`zmqps top` in a terminal of 80 × 24, at a real cluster; and where it cannot run."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pytest

import zmqps
from tests.cli.conftest import PATIENCE, ROOT, environment
from tests.inprocess import InProcessCluster
from tests.pace import allow
from zmqps.cli.main import run
from zmqps.core.protocol import exits
from zmqps.extras import advice

pyte = pytest.importorskip("pyte")
LINES, COLUMNS = 24, 80
TABLES, WINDOW = "q quit", "esc back"  # the keys in the last line


class Terminal:
    """A command in a pseudo-terminal, and what is seen there; it ends with the context."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self._main, shown = pty.openpty()
        fcntl.ioctl(shown, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        env = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "zmqps", *arguments], cwd=directory, env={**env, "TERM": "xterm-256color"},
            stdin=shown, stdout=shown, stderr=shown, start_new_session=True,
        )  # fmt: skip
        os.close(shown)
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_for(self, *texts: str, gone: str = "") -> str:
        """Read until all is seen, and what was there before is not; a screen may be read in parts."""
        deadline = time.monotonic() + PATIENCE
        while not all(text in self.text for text in texts) or (gone and gone in self.text):
            ready, _, _ = select.select([self._main], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {texts}{f', or still {gone!r}' if gone else ''} in:\n{self.text}"
            try:
                self._stream.feed(os.read(self._main, 65536))
            except OSError:  # it has ended
                raise AssertionError(f"it has ended, without {texts}:\n{self.text}") from None
        return self.text

    def press(self, key: str) -> None:
        os.write(self._main, key.encode())

    def exit_code(self) -> int:
        """Read what it still shows, and wait for its end."""
        deadline = time.monotonic() + PATIENCE
        while select.select([self._main], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                if not os.read(self._main, 65536):
                    break
            except OSError:
                break
        return self._popen.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(PATIENCE)
        os.close(self._main)


@pytest.mark.processes
def test_a_cluster_is_watched_and_asked_by_keys(tmp_path: Path) -> None:
    with InProcessCluster(servers=2, heartbeat_interval=0.2) as made, zmqps.connect(made.address) as worker:
        worker.init({"w": np.zeros(64, np.float32)}, optimizer=zmqps.optim.sgd(0.1), mode="async")
        with Terminal(["top", "--coordinator", made.address, "--every", "0.2"], tmp_path) as terminal:
            terminal.wait_for("worker 0", "server 0", "server 1", "training", "async", TABLES,
                              f"zmqps top · {made.address} · ready")  # fmt: skip
            for key, close, title, line in (
                ("h", "q", "all 3 nodes answer, the slowest in", "there and back"),
                ("s", "\x1b", "threads of worker 0", "thread MainThread"),
                ("\r", "q", "worker 0 of job 'default'", "pulls"),
                ("l", "q", "the log of worker-", "is not here: look on"),
            ):
                terminal.press(key)
                terminal.wait_for(title, line, WINDOW, gone=TABLES)
                terminal.press(close)
                # an Escape that is not read before the next key is taken for Alt and that key
                terminal.wait_for(TABLES, gone=title)
            terminal.press("q")
            assert terminal.exit_code() == exits.OK


@pytest.mark.processes
def test_it_begins_before_the_cluster_does_and_says_that_nobody_answers(tmp_path: Path) -> None:
    with Terminal(["top", "--coordinator", "tcp://127.0.0.1:1"], tmp_path) as terminal:
        terminal.wait_for("the coordinator has not answered for")
        terminal.press("q")
        assert terminal.exit_code() == exits.OK


def test_without_a_terminal_it_says_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top"]) == exits.USAGE
    assert "`zmqps top` needs a terminal; `zmqps status` prints once" in capsys.readouterr().err


def test_without_textual_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')")
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.stdin = sys.stdout = type("Terminal", (), {{"isatty": lambda self: True, "write": lambda self, text: None,
                                              "flush": lambda self: None}})()
from zmqps.cli.main import run
sys.exit(run(["top"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=allow(60), cwd=ROOT,
                          env=environment())  # fmt: skip
    assert done.returncode == exits.USAGE
    assert f"is not installed: {advice('watch')}" in done.stderr


def test_help_and_the_package_do_without_textual() -> None:
    script = """
import sys
import zmqps
from zmqps.cli.main import run
run(["--help"])
run(["top", "--help"])
assert "textual" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=allow(60), cwd=ROOT,
                          env=environment())  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "health" in done.stdout
