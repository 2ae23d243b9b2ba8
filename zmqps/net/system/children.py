"""How a process learns how its children end."""

from __future__ import annotations

import signal
import threading

#: In the place of an exit code that another part of the program has taken: no process ends with it.
UNKNOWN = 256


def heed_children() -> None:
    """Undo an ignored SIGCHLD, which is inherited; call this before a child is started.

    Where it is ignored the kernel forgets how children have ended, and each of them seems to have ended well.
    """
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return
    import ctypes  # Python sets signals in the main thread only

    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGCHLD, None)
