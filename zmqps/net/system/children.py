"""How a process learns its children's exit codes."""

from __future__ import annotations

import signal
import threading

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
