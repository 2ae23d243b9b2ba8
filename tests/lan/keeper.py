"""Process 1 of a LAN or of a host on it: it reaps orphans, and ends when its standard input does.

The kernel ends every other process of a process namespace with its process 1, those of namespaces inside it as well.
So whoever holds the pipe holds them all: should it be killed, nothing is left, and the wires go with the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys


def main(seconds: int) -> None:
    # Process 1 gets no signal it has no handler for.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(14))
    signal.alarm(seconds)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    print("ready", flush=True)
    with selectors.DefaultSelector() as selector:
        selector.register(wake, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if not os.read(key.fd, 4096) and key.fd == 0:
                    return
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
