"""How a script's uncaught error is shown: without the frames of zmqps, and Ctrl-C in one line.

What an error of zmqps says is in its text; where it was raised inside tells its user nothing. Errors of any other kind
keep all their frames, for debugging zmqps.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from zmqps.errors import PSError

#: Where this is set, nothing is left out.
VARIABLE = "ZMQPS_TRACEBACK"
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
STDLIB = f"{sysconfig.get_path('stdlib')}{os.sep}"
INSTALLED = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib"))


def show_briefly() -> None:
    """Show uncaught errors of this process so from now on, unless its script or another library shows them already."""
    if os.environ.get(VARIABLE):
        return
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _show_of_thread


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = brief(error.with_traceback(trace))
    if text is None or sys.stderr is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(text, file=sys.stderr, end="", flush=True)


def _show_of_thread(told: threading.ExceptHookArgs) -> None:
    text = brief(told.exc_value.with_traceback(told.exc_traceback)) if told.exc_value is not None else None
    if text is None or sys.stderr is None:
        threading.__excepthook__(told)
    else:
        name = told.thread.name if told.thread is not None else ""
        print(f"Exception in thread {name}:\n{text}", file=sys.stderr, end="", flush=True)


def brief(error: BaseException) -> str | None:
    """Return how an uncaught error is shown; None: as Python does."""
    if isinstance(error, KeyboardInterrupt):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_the_script(frame.filename)]
        where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        return f"KeyboardInterrupt{where}\n"
    if not _has_ours(error):
        return None
    shown = traceback.TracebackException.from_exception(error)
    _cut(error, shown)
    return "".join(shown.format())


def _has_ours(error: BaseException | None) -> bool:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, PSError):
            return True
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _cut(error: BaseException, shown: traceback.TracebackException) -> None:
    """Leave out frames of zmqps, and below one of its errors those that were raised and caught inside."""
    is_ours = isinstance(error, PSError)
    if is_ours:
        shown.stack = traceback.StackSummary.from_list(_of_others(shown.stack))
    for name in ("__cause__", "__context__"):
        before, below = getattr(error, name), getattr(shown, name)
        if before is None or below is None:
            continue
        if is_ours and not any(_is_of_the_script(frame.filename) for frame in below.stack):
            setattr(shown, name, None)
        else:
            _cut(before, below)


def _of_others(stack: traceback.StackSummary) -> list[Any]:
    """Return the frames that are neither of zmqps nor of what it calls in Python's library."""
    kept, inside = list[Any](), False
    for frame in stack:
        inside = frame.filename.startswith(PACKAGE) or (inside and not _is_of_the_script(frame.filename))
        if not inside:
            kept.append(frame)
    return kept


def _is_of_the_script(file: str) -> bool:
    """Whether a frame is neither of zmqps nor of Python's library."""
    if file.startswith((PACKAGE, "<frozen ")):
        return False
    return file.startswith(INSTALLED) or not file.startswith(STDLIB)
