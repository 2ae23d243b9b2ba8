"""This process's life under a launcher: which worker it is, in which life, and whether it was asked to leave."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType

from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import ConfigurationError
from zmqps.logs.handler import VARIABLE as LOG_VARIABLE

TOKEN_VARIABLE, LIFE_VARIABLE, INDEX_VARIABLE = "ZMQPS_WORKER_TOKEN", "ZMQPS_WORKER_RESTART", "ZMQPS_WORKER_INDEX"
MOST_LIVES = 2**32

_asked = threading.Event()


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
        raise ConfigurationError(f"{LIFE_VARIABLE} must be how often a worker was restarted, not {number!r:.40}")
    return Life(bytes.fromhex(text), int(number), index, log)


# --- leaving --------------------------------------------------------------------------------------


def drain_on(*signals: int) -> None:
    """Make a signal ask this process's workers to leave in order, instead of ending the process at once.

    From then on the signal sets `Worker.draining`. The training loop checks it at the end of a step, and calls
    `Worker.drain`. A second signal of the same number has its original effect.

    Parameters
    ----------
    *signals : int
        By default SIGTERM, which supervisors, schedulers and hosts about to be removed send. An ignored signal stays
        ignored, as SIGHUP under ``nohup``.

    Raises
    ------
    ConfigurationError
        This is not the main thread, or there is no such signal, or it cannot be caught.

    Examples
    --------
    >>> zmqps.drain_on()  # doctest: +SKIP
    >>> for batch in batches:  # doctest: +SKIP
    ...     if worker.draining:
    ...         worker.drain()  # says goodbye, and ends the program with exit code 75
    ...     worker.push(gradients(batch))
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("only the main thread may say what a signal does: call zmqps.drain_on() there")
    for number in signals or (signal.SIGTERM,):
        try:
            before = signal.getsignal(number)
            if before is not _on_signal and before is not signal.SIG_IGN:
                signal.signal(number, _on_signal)
                _before[number] = before
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(f"the signal {number!r} cannot be caught: {error}") from None


_before: dict[int, object] = {}


def _on_signal(number: int, frame: FrameType | None) -> None:
    _asked.set()
    signal.signal(number, _before.pop(number, None) or signal.SIG_DFL)  # type: ignore[arg-type]


def is_draining() -> bool:
    """Whether this process was asked to leave."""
    return _asked.is_set()
