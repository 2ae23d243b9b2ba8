"""The first message of every connection, checked by its receiver."""

from __future__ import annotations

from zmqps.core.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello
from zmqps.errors import LimitError, ProtocolError, ProtocolVersionError

#: The name of a job appears in errors, logs and tables.
MAX_JOB_NAME_CHARS = 100
#: Of nodes, hosts and barriers, which appear there too. No host's name is longer.
MAX_NAME_CHARS = 255
#: A server may be reached in several ways.
MAX_ENDPOINT_CHARS = 512
#: A server with this capability is taken beyond those that the cluster waits for, and gets what others lose.
SPARE = "spare"
#: Optional features; the one there is takes two.
MAX_CAPABILITIES = 16
MAX_CAPABILITY_CHARS = 1024


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
    check_name("a node's name", hello.name)
    check_name("a host's name", hello.host)
    check_name("an endpoint", hello.endpoint, MAX_ENDPOINT_CHARS)
    if len(hello.capabilities) > MAX_CAPABILITIES:
        raise LimitError(what="number of capabilities", got=len(hello.capabilities), limit=MAX_CAPABILITIES)
    for capability in hello.capabilities:
        check_length("a capability", capability, MAX_CAPABILITY_CHARS)


def check_length(what: str, text: str, limit: int = MAX_NAME_CHARS) -> str:
    """Return a text that is no longer than others have room for; raise `LimitError` for any other."""
    if len(text) > limit:
        raise LimitError(what=f"length of {what}", got=len(text), limit=limit)
    return text


def check_name(what: str, text: str, limit: int = MAX_NAME_CHARS) -> str:
    """Return a text that is short and printable; raise `ProtocolError` for any other."""
    if not check_length(what, text, limit).isprintable():
        raise ProtocolError(f"{what} has printable characters only, not {text[:40]!r}")
    return text


def check_job(hello: Hello) -> None:
    """Raise unless a Hello names a job."""
    if not is_job_name(hello.job):
        raise ProtocolError(f"a job's name has 1 to {MAX_JOB_NAME_CHARS} printable characters, not {hello.job[:40]!r}")
