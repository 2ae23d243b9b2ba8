"""Signals in our processes: an ignored one stays ignored, a script's handler is still called, children's ends are seen.

``nohup`` starts a process with SIGHUP ignored, and a shell without job control starts background processes with SIGINT
ignored. A handler of zmqps would undo that.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Ask = Callable[[signal.Signals], object]


def is_ignored(number: int) -> bool:
    """Whether a signal is ignored, by the parent or by the script."""
    return signal.getsignal(number) is signal.SIG_IGN


@contextlib.contextmanager
def answered(numbers: Iterable[signal.Signals], ask: Ask, *, from_parent: bool = False) -> Iterator[None]:
    """Call ``ask`` in the running loop at signals; afterwards restore their handlers.

    Parameters
    ----------
    numbers
        The signals; ignored ones stay ignored.
    ask
        Called with the signal; then the script's own handler is called.
    from_parent
        Our own parent process ends this one by these signals: they are handled even if ignored.
    """
    import asyncio  # `zmqps --help` does without it

    loop, before = asyncio.get_running_loop(), dict[signal.Signals, Any]()

    def heard(number: signal.Signals, theirs: Any) -> None:
        ask(number)
        if theirs is not None:
            theirs(int(number), None)

    try:
        for number in numbers:
            if is_ignored(number) and not from_parent:
                continue
            handler = signal.getsignal(number)
            with contextlib.suppress(NotImplementedError):  # platforms without signal handlers in loops
                loop.add_signal_handler(number, heard, number, handler if _is_of_a_script(handler) else None)
                before[number] = handler
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: not Python's, and cannot be set again
                signal.signal(number, handler)


def _is_of_a_script(handler: Any) -> bool:
    """Whether a handler was set for the signal by other code than Python or `asyncio.run`."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    import asyncio

    bound = handler.func if isinstance(handler, functools.partial) else handler
    return not isinstance(getattr(bound, "__self__", None), asyncio.Runner)


#: Used if another part of the program has taken an exit code: no process exits with it.
UNKNOWN = 256


def heed_children() -> None:
    """Undo an ignored SIGCHLD, which is inherited; call this before a child is started.

    If it is ignored the kernel forgets the exit codes, and each child seems to have ended well.
    """
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return
    import ctypes  # Python sets signals only in the main thread

    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGCHLD, None)
