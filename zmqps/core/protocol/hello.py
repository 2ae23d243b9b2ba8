"""The first message of every connection, checked by whoever receives it."""

from __future__ import annotations

from zmqps.core.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello
from zmqps.errors import ProtocolError, ProtocolVersionError

#: The name of a job stands in errors, logs and tables.
MAX_JOB_NAME_CHARS = 100


def is_job_name(name: str) -> bool:
    """Whether a job can have this name."""
    return 0 < len(name) <= MAX_JOB_NAME_CHARS and name.isprintable()


def check_hello(hello: Hello, roles: tuple[str, ...]) -> None:
    """Raise unless a Hello speaks our protocol and has one of these roles."""
    if hello.magic != MAGIC:
        raise ProtocolError(f"magic {hello.magic[:20]!r} is not {MAGIC!r}")
    if hello.version != PROTOCOL_VERSION:
        raise ProtocolVersionError(ours=PROTOCOL_VERSION, theirs=hello.version)
    if hello.role not in roles:
        raise ProtocolError(f"role {hello.role[:20]!r} is not one of {roles}")


def check_job(hello: Hello) -> None:
    """Raise unless a Hello names a job."""
    if not is_job_name(hello.job):
        raise ProtocolError(f"a job's name has 1 to {MAX_JOB_NAME_CHARS} printable characters, not {hello.job[:40]!r}")
