"""Hosts for tests: a stand-in for ssh, which runs the command here, and a real sshd on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.pace import allow

#: Takes ssh's arguments, and is reached at the address that is the host's name.
STAND_IN = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in -o|-p) shift 2 ;; --) shift; break ;; *) shift ;; esac
done
host=$1; shift
[ "$host" = nowhere ] && { echo "ssh: Could not resolve hostname nowhere" >&2; exit 255; }
export SSH_CONNECTION="127.0.0.1 1 ${host#*@} 22"
echo "Welcome to $host"
exec sh -c "$*"
"""


def stand_in(directory: Path) -> str:
    """Return a command in place of ssh."""
    path = directory / "ssh"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


@contextlib.contextmanager
def real_sshd(directory: Path) -> Iterator[str]:
    """Run an sshd on 127.0.0.21 and 127.0.0.22 (hosts node-a and node-b); yield the ssh that reaches it."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
    assert sshd is not None
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True, timeout=allow(20)
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.21", 0))
        port = probe.getsockname()[1]
    (directory / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.21\nListenAddress 127.0.0.22\nHostKey {directory}/host_key\n"
        f"AuthorizedKeysFile {directory}/key.pub\nPidFile none\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nAcceptEnv *\n"
    )
    (directory / "ssh_config").write_text(
        f"Host node-a\n HostName 127.0.0.21\nHost node-b\n HostName 127.0.0.22\nHost *\n Port {port}\n"
        f" IdentityFile {directory}/key\n IdentitiesOnly yes\n StrictHostKeyChecking no\n"
        " UserKnownHostsFile /dev/null\n LogLevel ERROR\n SendEnv PYTEST_RUN_OF_ZMQPS OPENBLAS_NUM_THREADS\n"
    )
    command = [sshd, "-D", "-e", "-f", str(directory / "sshd_config")]
    with open(directory / "sshd.log", "wb") as log, subprocess.Popen(command, stderr=log) as popen:
        try:
            yield f"ssh -F {directory}/ssh_config"
        finally:
            popen.terminate()


def missing() -> str:
    """Return why no sshd can be run here, or nothing."""
    if os.geteuid() != 0:
        return "sshd needs root to let root in"
    found = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", "")) and shutil.which("ssh")
    return "" if found else "there is no sshd"
