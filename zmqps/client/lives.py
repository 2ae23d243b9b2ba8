"""Which worker of its launcher this process is, and which life of it, if failed workers are restarted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import ConfigurationError
from zmqps.logs.handler import VARIABLE as LOG_VARIABLE

TOKEN_VARIABLE, LIFE_VARIABLE, INDEX_VARIABLE = "ZMQPS_WORKER_TOKEN", "ZMQPS_WORKER_RESTART", "ZMQPS_WORKER_INDEX"
MOST_LIVES = 2**32


@dataclass(frozen=True, slots=True)
class Life:
    """A life of a worker.

    Attributes
    ----------
    token
        A secret shared by all lives of this worker; empty if it is not restarted.
    number
        The number of earlier lives.
    index
        The worker's number from its launcher; None: it was not started as one of several.
    log
        The launcher's name for this worker's log; empty without one.
    """

    token: bytes = field(default=b"", repr=False)
    number: int = 0
    index: int | None = None
    log: str = ""

    def name(self, role: str) -> str | None:
        """Return the default name: the same in each life; None: as for any other process.

        A worker has the name of its log.
        """
        if self.index is None:
            return None
        own = f"{role}-{self.index}"
        return self.log if self.log.partition("@")[0] == own else own

    def wish(self, role: str) -> int | None:
        """Return the requested rank; None: any."""
        return self.index if role == "worker" else None


def find_life(environ: Mapping[str, str]) -> Life:
    """Return the life that a supervisor has put into the environment.

    Raises
    ------
    ConfigurationError
        A token or a number is malformed.
    """
    text, number = environ.get(TOKEN_VARIABLE, ""), environ.get(LIFE_VARIABLE, "") or "0"
    told = environ.get(INDEX_VARIABLE, "")
    if told and (not re.fullmatch(r"\d{1,9}", told, re.ASCII)):
        raise ConfigurationError(f"{INDEX_VARIABLE} is the number of a worker, from 0, not {told!r:.40}")
    index, log = int(told) if told else None, environ.get(LOG_VARIABLE, "")
    if not text:
        return Life(index=index, log=log)
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * KEY_NBYTES}}}", text):
        raise ConfigurationError(f"{TOKEN_VARIABLE} has {2 * KEY_NBYTES} hex digits: openssl rand -hex {KEY_NBYTES}")
    if not re.fullmatch(r"\d{1,10}", number, re.ASCII) or int(number) >= MOST_LIVES:
        raise ConfigurationError(f"{LIFE_VARIABLE} is how often a worker was restarted, not {number!r:.40}")
    return Life(bytes.fromhex(text), int(number), index, log)
