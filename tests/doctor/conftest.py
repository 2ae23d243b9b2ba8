"""A stand-in for ssh: what would run on another host runs here, as that host's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SSH = """#!/bin/sh
# ssh OPTIONS USER@HOST COMMAND: HOST is an address of loopback, by which it is said to have been reached
for command; do host=$last last=$command; done
export SSH_CONNECTION="127.0.0.1 40000 ${host#*@} 22"
%s
exec sh -c "$command"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put the stand-in in front of the path; it runs some lines of shell first, which may ask for $host."""

    def put(lines: str = "") -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / "ssh"
        script.write_text(SSH % lines)
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    return put
