"""Where a node answers over HTTP, and with which token."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from zmqps import checks
from zmqps.core.protocol.endpoints import is_loopback, join, split
from zmqps.errors import ConfigurationError
from zmqps.net.identity import read_secret

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WebPlace:
    """What the user has said of it.

    Parameters
    ----------
    address
        ``HOST:PORT``, or a port of loopback; 0 takes a free one. Empty: nothing is answered.
    token
        The file with what clients have to show; None: nothing is given.
    insecure
        Answer beyond this host without such a file.
    option
        The option that says the address: ``metrics`` or ``page``.
    """

    address: str = ""
    token: str | os.PathLike[str] | None = None
    insecure: bool = False
    option: str = "metrics"

    def check(self) -> None:
        """Raise `ConfigurationError` for an invalid address, or one beyond this host without a token."""
        if not isinstance(self.address, str):
            checks.refuse(self.option, "an address, HOST:PORT", self.address)
        secret = self.secret
        if not self.address:
            return
        host, _ = self.host_and_port
        if not (is_loopback(host) or secret or self.insecure):
            raise ConfigurationError(
                f"--{self.option} {self.address} can be reached from other hosts, and nothing of it is encrypted: pass "
                f"--{self.option}-token FILE, keep it at 127.0.0.1 and come by `ssh -L`, or pass --insecure on a "
                "network that you trust"
            )

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where to listen."""
        address = self.address
        if address.isascii() and address.isdecimal():
            address = f"{LOOPBACK}:{address}"
        try:
            host, port = split(f"tcp://{address}")
        except ConfigurationError:
            raise ConfigurationError(
                f"{self.address!r:.200} is no address for --{self.option}; write HOST:PORT, such as 127.0.0.1:9570, or "
                "a port of this host alone"
            ) from None
        return ("0.0.0.0" if host == "*" else host), port

    @property
    def secret(self) -> bytes:
        """What clients have to show."""
        secret = read_secret(self.token, f"{self.option}_token", f"the token of --{self.option}-token")
        if not re.fullmatch(rb"[!-~]*", secret):
            raise ConfigurationError(f"the token of --{self.option}-token has more than visible characters of ASCII")
        return secret

    @property
    def is_open(self) -> bool:
        """Whether only this host reaches it, and no token is required."""
        return is_loopback(self.host_and_port[0]) and not self.secret


def url(host: str, port: int) -> str:
    """Return where metrics are found."""
    return f"{join(host, port).replace('tcp://', 'http://')}/metrics"
