"""What all processes of a cluster share: an identity, an endpoint to bind."""

from __future__ import annotations

import os
import re
import secrets
import socket
import uuid
from collections.abc import Mapping

from zmqps import checks
from zmqps.core.node.member import Identity
from zmqps.core.protocol.endpoints import check_endpoint, is_loopback, split
from zmqps.core.protocol.security.keys import KEY_NBYTES, process_of
from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.files import TEXT_NBYTES, read_file

#: A job secret must not be guessable; in hex it is twice as long as its bytes.
MIN_SECRET_NBYTES = 16
MAX_SECRET_NBYTES = 4096
#: Environment of a supervised process: its token, and a worker's process group.
PROCESS = "ZMQPS_PROCESS"


def new_identity(
    role: str,
    *,
    name: str | None = None,
    endpoint: str = "",
    job: str = "",
    job_secret: bytes = b"",
    keyed: bool = False,
    token: bytes = b"",
    life: int = 0,
    index: int | None = None,
) -> Identity:
    """Return the identity of this life of this process.

    ``job`` is the job of a worker or observer, ``token`` and ``life`` those of a restarted one, ``index`` the number
    from its launcher.
    """
    host = socket.gethostname()
    return Identity(
        role=role,
        incarnation=uuid.uuid4().bytes,
        name=name or f"{role}-{host}-{os.getpid()}",
        host=host,
        pid=os.getpid(),
        endpoint=endpoint,
        job=job,
        secret=secrets.token_bytes(KEY_NBYTES),
        job_secret=job_secret,
        keyed=keyed,
        token=token,
        life=life,
        index=index,
        process=launched_process(os.environ),
    )


def launched_process(environ: Mapping[str, str]) -> bytes:
    """Return the identifier of the process that a supervisor has started, if this one ends with it; else empty.

    That is so in its process group, which the supervisor kills when the process has ended: a worker's, which its leash
    has named, or that of a node, which is the process itself.
    """
    found = re.fullmatch(rf"([0-9a-f]{{{2 * KEY_NBYTES}}})(?::([0-9]{{1,10}}))?", environ.get(PROCESS, ""))
    if found is None or os.getpgrp() != int(found[2] or os.getpid()):
        return b""
    return process_of(bytes.fromhex(found[1]))


def read_job_secret(path: str | os.PathLike[str] | None) -> bytes:
    """Return the job secret that a file holds, see `read_secret`."""
    return read_secret(path, "job_secret", "the job secret")


def read_secret(path: str | os.PathLike[str] | None, option: str, what: str) -> bytes:
    """Return a file's secret, without surrounding white space; empty if there is no file.

    Raises
    ------
    ConfigurationError
        The file cannot be read, or is too short.
    """
    if path is None:
        return b""
    if not isinstance(path, str | os.PathLike):
        checks.refuse(option, "a path", path)
    try:
        secret = read_file(path, TEXT_NBYTES).strip()
    except UnsafeFileError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read {what} {str(path)!r:.200}: {error!s:.200}") from None
    if not MIN_SECRET_NBYTES <= len(secret) <= MAX_SECRET_NBYTES:
        raise ConfigurationError(
            f"{what} in {str(path)!r} has {len(secret)} bytes; take {MIN_SECRET_NBYTES} to {MAX_SECRET_NBYTES} "
            "that are hard to guess: openssl rand -hex 32"
        )
    return secret


def check_bind(endpoint: str, *, insecure: bool, keyed: bool = False) -> None:
    """Refuse to listen beyond this host without keys, unless allowed: nothing would be encrypted or authenticated.

    Raises
    ------
    ConfigurationError
        The endpoint is invalid, or reaches beyond loopback without keys and without ``insecure``.
    """
    check_endpoint(endpoint)
    checks.flag("insecure", insecure)
    beyond = endpoint.startswith("tcp://") and not is_loopback(split(endpoint)[0])
    if beyond and not insecure and not keyed:
        raise ConfigurationError(
            f"{endpoint} can be reached from other hosts, and without keys any of their users may read and change "
            "everything; make some with `zmqps keys create DIR` and pass --keys DIR, bind to 127.0.0.1, or pass "
            "--insecure on a network where you trust every host"
        )
