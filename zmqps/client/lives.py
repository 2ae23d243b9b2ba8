"""Which life of which worker this process is, where a supervisor starts workers again when they fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from zmqps.core.protocol.keys import KEY_NBYTES
from zmqps.errors import ConfigurationError

TOKEN_VARIABLE, LIFE_VARIABLE, INDEX_VARIABLE = "ZMQPS_WORKER_TOKEN", "ZMQPS_WORKER_RESTART", "ZMQPS_WORKER_INDEX"
MOST_LIVES = 2**32


@dataclass(frozen=True, slots=True)
class Life:
    """A life of a worker.

    Attributes
    ----------
    token
        What all lives of this worker know, and nobody else; empty where it is not started again.
    number
        How many there were before.
    index
        The worker's number, as its supervisor counts; empty where that is not known.
    """

    token: bytes = field(default=b"", repr=False)
    number: int = 0
    index: str = ""

    def name(self, role: str) -> str | None:
        """Return what it is called where its user does not say: the same in each life; None: as any other process."""
        return f"{role}-{self.index}" if self.token and self.index else None


def find_life(environ: Mapping[str, str]) -> Life:
    """Return what a supervisor has put into the environment.

    Raises
    ------
    ConfigurationError
        It is no token, or no number.
    """
    text, number = environ.get(TOKEN_VARIABLE, ""), environ.get(LIFE_VARIABLE, "") or "0"
    if not text:
        return Life()
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * KEY_NBYTES}}}", text):
        raise ConfigurationError(f"{TOKEN_VARIABLE} has {2 * KEY_NBYTES} hex digits: openssl rand -hex {KEY_NBYTES}")
    if not re.fullmatch(r"\d{1,10}", number, re.ASCII) or int(number) >= MOST_LIVES:
        raise ConfigurationError(f"{LIFE_VARIABLE} is how often a worker was restarted, not {number!r:.40}")
    return Life(bytes.fromhex(text), int(number), environ.get(INDEX_VARIABLE, ""))
