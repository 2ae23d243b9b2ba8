"""The first message of every connection, checked by whoever receives it."""

from __future__ import annotations

from zmqps.core.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello
from zmqps.errors import ProtocolError, ProtocolVersionError


def check_hello(hello: Hello, roles: tuple[str, ...]) -> None:
    """Raise unless a Hello speaks our protocol and has one of these roles."""
    if hello.magic != MAGIC:
        raise ProtocolError(f"magic {hello.magic[:20]!r} is not {MAGIC!r}")
    if hello.version != PROTOCOL_VERSION:
        raise ProtocolVersionError(ours=PROTOCOL_VERSION, theirs=hello.version)
    if hello.role not in roles:
        raise ProtocolError(f"role {hello.role[:20]!r} is not one of {roles}")
