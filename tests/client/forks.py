"""A program that connects, forks, and uses its parent's worker in the child; prints what came of it as JSON.

Its arguments are the coordinator's address, how to fork, and how the child ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import zmqps
from tests.pace import allow

PARAMS = {"w": np.zeros(1000, np.float32)}
ONE = {"w": np.ones(1000, np.float32)}


def outcome(call: Callable[[], Any]) -> str:
    """Say how a call ends; what waits does so each time, what is only kept from a processor does not."""
    for _ in range(3):
        begun = time.monotonic()
        try:
            call()
        except Exception as error:
            took = time.monotonic() - begun
            ended = f"{type(error).__name__}{'' if took < 0.5 else f' after {took:.1f} s'}"
            if took < 0.5:
                break
        else:
            return "returned"
    return ended


def in_child(worker: zmqps.Worker, aio: zmqps.aio.AsyncWorker, pending: Any, local: Any) -> dict[str, str]:
    calls: dict[str, Callable[[], Any]] = {
        "init": lambda: worker.init(PARAMS, optimizer=zmqps.optim.sgd(1.0), mode="async"),
        "push": lambda: worker.push(ONE),
        "push_async": lambda: worker.push_async(ONE),
        "pull": lambda: worker.pull(),
        "pull_each": lambda: worker.pull_each(),
        "push_pull": lambda: worker.push_pull(ONE),
        "advance": lambda: worker.advance(),
        "gradient_buffers": lambda: worker.gradient_buffers(),
        "barrier": lambda: worker.barrier("b", timeout=9.0),
        "ranges": lambda: next(worker.ranges(10, 2)),
        "status": lambda: worker.status(),
        "statistics": lambda: worker.statistics(),
        "rejoin": lambda: worker.rejoin(),
        "finish": lambda: worker.finish(),
        "close": lambda: worker.close(),
        "result": lambda: pending.result(5.0),
        "cancel": lambda: pending.cancel(),
        "local step": lambda: local.step(),
        "aio pull": lambda: asyncio.run(aio.pull()),
        "aio statistics": lambda: asyncio.run(aio.statistics()),
        "aio close": lambda: asyncio.run(aio.close()),
    }
    return {name: outcome(call) for name, call in calls.items()}


def main() -> None:
    address, how, ending = sys.argv[1:]
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 does not like forks of threads; nor do we
    worker = zmqps.connect(address, name="parent")
    worker.init(PARAMS, optimizer=zmqps.optim.sgd(1.0), mode="async")
    worker.push(ONE)
    worker.gradient_buffers()
    kept = worker.pull(copy=False)
    local = zmqps.local.LocalSteps(worker, 1)

    async def connect() -> zmqps.aio.AsyncWorker:
        return await zmqps.aio.connect(address, name="awaited")

    aio = asyncio.run(connect())
    asyncio.run(aio.pull())
    pending = worker.pull_async(at_least=99, timeout=allow(60.0))
    reader, writer = os.pipe()

    def child() -> None:
        os.write(writer, json.dumps(in_child(worker, aio, pending, local)).encode())
        os.close(writer)
        with zmqps.connect(address, name="child") as mine:  # a worker of its own it may have
            mine.push(ONE)
        if ending == "collected":
            unreferenced()

    def unreferenced() -> None:
        nonlocal worker, aio, local, pending, kept
        del worker, aio, local, pending, kept
        gc.collect()

    if how == "fork":
        pid = os.fork()
        if pid == 0:
            with worker:
                child()
                if ending == "_exit":
                    os._exit(0)
                sys.exit(0)
        os.close(writer)
        begun = time.monotonic()
        patience = threading.Timer(30.0, os.kill, (pid, signal.SIGKILL))
        patience.start()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        patience.cancel()
    else:
        process = multiprocessing.get_context("fork").Process(target=child)
        begun = time.monotonic()
        process.start()
        os.close(writer)
        process.join(allow(30.0))
        code = process.exitcode  # None: it still runs
        process.kill()
    took = time.monotonic() - begun
    with os.fdopen(reader) as file:
        text = file.read()
    # the parent goes on, as if nothing had been
    worker.push(ONE)
    values = worker.pull()["w"]
    status = worker.status()
    names = sorted(member["name"] for member in status["members"] if member["role"] == "worker")
    pending.cancel()
    facts = {
        "code": code,
        "took": took,
        "outcomes": json.loads(text or "{}"),
        "names": names,
        "value": float(values[0]),
    }
    facts["kept"] = float(kept["w"][0])
    print(json.dumps(facts))
    asyncio.run(aio.close())
    worker.close()


if __name__ == "__main__":
    main()
