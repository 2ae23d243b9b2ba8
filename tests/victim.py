"""Workers in processes of their own, for tests that kill them: each does what it reads, and can stop at a named point.

``python -m tests.victim FD`` forks one for each list of arguments that it reads from the socket FD, with two files for
what the worker reads and writes: to import everything anew would take a second each.

A worker reads a JSON list a line, ``[command, argument, ...]``, and answers each with a JSON map. On its way through a
push it stops at the point it was told (`Stopper`), says so, and stays there, without a sign of life, until it reads
``["release"]``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

import zmqps
from tests.team import PATIENCE
from zmqps.core.protocol.messages import Push
from zmqps.core.protocol.wire import decode
from zmqps.net.zeromq import ZmqTransport
from zmqps.optim import all_finite


class Stopper:
    """Stops the thread that sends, and so all signs of life, at a point of a push.

    ``between slices``: one slice is sent, more are to be sent to the same server. ``between shards``: all slices of one
    server are sent, none of the other's.
    """

    def __init__(self) -> None:
        self.point = ""
        self.released = threading.Event()
        self._sent: dict[bytes, int] = {}
        self._send = ZmqTransport.send
        ZmqTransport.send = lambda *arguments: self.send(*arguments)  # type: ignore[method-assign,assignment]

    def send(self, transport: ZmqTransport, peer: bytes, frames: Any, readers: Any) -> bool:
        """Send a message, but stop before it if this is the point."""
        if self.point and isinstance(decode(frames), Push):
            if (peer in self._sent) if self.point == "between slices" else (self._sent and peer not in self._sent):
                point, self.point = self.point, ""
                answer({"at": point, "sent": sum(self._sent.values())})
                self.released.wait()
            self._sent[peer] = self._sent.get(peer, 0) + 1
        return self._send(transport, peer, frames, readers)


def answer(facts: Mapping[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


def read(commands: queue.Queue[list[Any]], stopper: Stopper) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if command == ["release"]:
            stopper.released.set()
        else:
            commands.put(command)
    commands.put(["end"])


def do(
    worker: zmqps.Worker, params: Mapping[str, np.ndarray], stopper: Stopper, name: str, *given: Any
) -> dict[str, Any]:
    if name == "stop at":
        (stopper.point,) = given
    elif name == "push":
        worker.push({parameter: np.full_like(value, given[0]) for parameter, value in params.items()}, timeout=PATIENCE)
    elif name == "pull":
        pulled = worker.pull(at_least=given[0], timeout=PATIENCE)
        return {"version": pulled.version, "value": float(pulled["w"][0])}
    elif name == "rejoin":
        worker.rejoin(timeout=PATIENCE)
    else:
        raise ValueError(name)
    return {"done": name, "rank": worker.rank}


def main(address: str, name: str, size: str) -> None:
    commands: queue.Queue[list[Any]] = queue.Queue()
    stopper = Stopper()
    threading.Thread(target=read, args=(commands, stopper), daemon=True).start()
    params = {name: np.zeros(int(size), np.float32) for name in "wv"}
    with zmqps.connect(address, name=name, timeout=PATIENCE, transport="tcp") as worker:
        worker.init(params, optimizer=zmqps.optim.sgd(1.0), mode="sync", timeout=PATIENCE)
        answer({"rank": worker.rank})
        while (command := commands.get()) != ["end"]:
            try:
                answer(do(worker, params, stopper, *command))
            except zmqps.PSError as error:
                answer({"error": type(error).__name__, "text": str(error)})


def serve(control: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who is killed leaves nothing behind
    for dtype in (np.float32, np.float64):
        all_finite(np.empty(0, dtype), "numba")  # imports and loads what a worker does when it connects
    while True:
        arguments, files, _, _ = socket.recv_fds(control, 4096, 2)
        if not arguments:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            main(*json.loads(arguments))
            os._exit(0)
        for file in files:
            os.close(file)
        control.send(str(pid).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
