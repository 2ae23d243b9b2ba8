"""The stacks of this process's threads, in lines; and a signal that prints them if its loop does not answer."""

from __future__ import annotations

import faulthandler
import linecache
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from zmqps.core.protocol.message import MAX_TEXT_CHARS
from zmqps.core.protocol.messages.watching import MAX_STACKS_NBYTES

#: Frames shown per thread, the innermost ones, and threads.
MOST_FRAMES = 48
MOST_THREADS = 64
#: Lines of code may have any length.
MAX_LINE_CHARS = 160
#: The longest that other threads wait during the sampling; it takes a millisecond or less.
LOOK_S = 1.0
#: Makes the interpreter print the same whatever its threads are doing.
SIGNAL = "SIGUSR2"

#: File, line and function.
Place = tuple[str, int, str]

_registered = False
_log = ""


def threads() -> list[str]:
    """Return the stacks of all threads: for each its name, then its frames, the innermost first.

    Bounded to `zmqps.core.protocol.messages.watching.MAX_STACKS_NBYTES`. It contains no values of variables.
    """
    named = {thread.ident: thread for thread in threading.enumerate()}
    frames = _current()
    main = threading.main_thread().ident
    order = sorted(frames, key=lambda ident: (ident != main, _title(named.get(ident), ident)))
    lines = [f"pid {os.getpid()}, {len(frames)} threads"]
    for ident in order[:MOST_THREADS]:
        asking = ", which answers this" if ident == threading.get_ident() else ""
        lines += ["", f"{_title(named.get(ident), ident)}{asking}", *_frames(frames[ident])]
    if len(order) > MOST_THREADS:
        lines += ["", f"{len(order) - MOST_THREADS} more threads"]
    return _bounded(lines)


def _current() -> dict[int, list[Place]]:
    """Return the stacks of all threads: file, line and function of each call, the innermost first.

    No other thread runs meanwhile, because a frame cannot be followed while its function returns. So nothing is read
    from files here.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LOOK_S)
    try:
        return {ident: _places(frame) for ident, frame in sys._current_frames().items()}
    finally:
        sys.setswitchinterval(interval)


def _places(frame: FrameType | None) -> list[Place]:
    places: list[Place] = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return places


def _title(thread: threading.Thread | None, ident: int) -> str:
    if thread is None:
        return f"thread {ident}, which Python did not start"
    return f"thread {thread.name}{' (daemon)' if thread.daemon else ''}"


def _frames(places: Sequence[Place]) -> list[str]:
    lines: list[str] = []
    for file, line, function in places[:MOST_FRAMES]:
        lines.append(f"  {_short(file)}:{line} {function}")
        if source := linecache.getline(file, line).strip():
            lines.append(f"    {source[:MAX_LINE_CHARS]}")
    further = len(places) - MOST_FRAMES
    return [*lines, f"  {further} frames further out"] if further > 0 else lines


def _short(path: str) -> str:
    """Return the name of a file relative to the longest of the directories on the search path."""
    places = [place for place in sys.path if place and path.startswith(f"{place.rstrip(os.sep)}{os.sep}")]
    return path[len(max(places, key=len).rstrip(os.sep)) + 1 :] if places else path


def _bounded(lines: list[str]) -> list[str]:
    kept, left = list[str](), MAX_STACKS_NBYTES - 100
    for line in lines:
        line = line[:MAX_TEXT_CHARS]
        left -= len(line.encode(errors="replace")) + 4
        if left < 0:
            return [*kept, "…"]
        kept.append(line)
    return kept


def answer_signal(log: str = "") -> bool:
    """Make this process write its stacks to standard error at `SIGNAL`; return whether it does.

    Nothing is done if the signal has another handler, or there is no standard error.

    Parameters
    ----------
    log
        The name of the log of its standard error, without the suffix.
    """
    global _registered, _log
    _log = log
    number = getattr(signal, SIGNAL, None)
    if _registered or number is None or signal.getsignal(number) is not signal.SIG_DFL:
        return _registered
    try:
        faulthandler.register(number, all_threads=True)
    except (AttributeError, OSError, ValueError, RuntimeError):  # no standard error, or not on this platform
        return False
    _registered = True
    return True


def facts() -> Mapping[str, Any]:
    """Return the counters for heartbeats: the signal's number, as long as it is ours, and the log."""
    number = getattr(signal, SIGNAL, None)
    ours = _registered and number is not None and signal.getsignal(number) is signal.SIG_DFL
    return {**({"stacks_signal": int(number)} if number and ours else {}), **({"log": _log} if _log else {})}
