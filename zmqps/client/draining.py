"""Whether this process was asked to leave, by a signal that its program has chosen for that."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from zmqps.errors import ConfigurationError

_asked = threading.Event()


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
