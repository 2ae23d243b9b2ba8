"""What signals do in processes of ours: what the parent has ignored stays ignored, and what a script has set is called.

``nohup`` starts a process with SIGHUP ignored, and a shell without job control what it starts in the background with
SIGINT ignored. A handler of ours would undo that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Ask = Callable[[signal.Signals], object]


def is_ignored(number: int) -> bool:
    """Whether a signal is ignored, by what has started this process or by its script."""
    return signal.getsignal(number) is signal.SIG_IGN


@contextlib.contextmanager
def answered(numbers: Iterable[signal.Signals], ask: Ask, *, from_parent: bool = False) -> Iterator[None]:
    """Call ``ask`` in the running loop at signals; afterwards they do what they did before.

    Parameters
    ----------
    numbers
        Which signals; those that are ignored stay so.
    ask
        Called with the signal; after it the handler that a script had set.
    from_parent
        A process of ours has started this one and ends it by these signals: they are answered even if ignored.
    """
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
    """Whether somebody has set a handler who wants to hear of the signal: neither Python nor `asyncio.run`."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    bound = handler.func if isinstance(handler, functools.partial) else handler
    return not isinstance(getattr(bound, "__self__", None), asyncio.Runner)
