"""Apache Arrow Flight: an open `do_exchange` for each connection; gradients go in, values come back chunk by chunk.

``--variant tcp-2``: over TCP, with two connections from each worker to each server; ``unix-1``: a Unix socket.
"""

from __future__ import annotations

import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import flight

from bench import models
from bench.children import Child, call_all
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve

TIMEOUT = 120.0
#: A message, so that the work on one overlaps with the way of the next.
CHUNK = (4 << 20) // 4
#: A step of as much needs no thread that sends while another receives.
SMALL = (64 << 10) // 4
#: Without it all clients of a process share one connection.
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
SCHEMA = pa.schema([("values", pa.float32())])


def batch_of(array: np.ndarray) -> pa.RecordBatch:
    """Return an array as a batch, without a copy."""
    values = pa.Array.from_buffers(pa.float32(), len(array), [None, pa.py_buffer(array)])
    return pa.RecordBatch.from_arrays([values], schema=SCHEMA)


def parts(work: Work, connections: int) -> list[list[int]]:
    """Return the sizes of the chunks on each connection to one server."""
    size = models.num_elements(work.shapes) // work.servers // connections
    return [[min(CHUNK, size - at) for at in range(0, size, CHUNK)] for _ in range(connections)]


class Shard(flight.FlightServerBase):
    """What one server holds: for each connection of a worker, its chunks, each with its optimizer."""

    def __init__(self, location: str, chunks: list[list[int]], work: Work) -> None:
        super().__init__(location)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        make = partial(optimizers[work.optimizer], lr=LEARNING_RATE, fused=True)
        self._parameters = [[torch.nn.Parameter(torch.ones(size)) for size in part] for part in chunks]
        self._optimizers = [[make([parameter]) for parameter in part] for part in self._parameters]
        self._lock = threading.Lock()

    def do_exchange(self, context: object, descriptor: flight.FlightDescriptor, reader: object, writer: object) -> None:
        """Apply each gradient as it arrives, and answer with its values."""
        part = int(descriptor.command)
        writer.begin(SCHEMA)
        chunks = list(zip(self._parameters[part], self._optimizers[part], strict=True))
        values = [batch_of(parameter.detach().numpy()) for parameter, _ in chunks]
        for number, chunk in enumerate(reader):
            parameter, optimizer = chunks[number % len(chunks)]
            with self._lock:
                parameter.grad = torch.from_numpy(chunk.data.column(0).to_numpy())
                optimizer.step()
            writer.write_batch(values[number % len(chunks)])


class Server:
    """A process with a shard."""

    def __init__(self, location: str, connections: int, work: Work) -> None:
        self._shard = Shard(location, parts(work, connections), work)

    def port(self) -> int:
        """Where it listens, over TCP."""
        return self._shard.port


class Worker:
    """A process that hands in gradients over its connections, and takes the values."""

    def __init__(self, locations: list[str], connections: int, work: Work) -> None:
        self._lanes = []
        for location in locations:
            for number, sizes in enumerate(parts(work, connections)):
                client = flight.FlightClient(location, generic_options=OPTIONS)
                command = flight.FlightDescriptor.for_command(b"%d" % number)
                writer, reader = client.do_exchange(command)
                writer.begin(SCHEMA)
                gradient = np.full(sum(sizes), GRADIENT_SCALE, np.float32)
                ends = np.cumsum([0, *sizes])
                batches = [batch_of(gradient[a:b]) for a, b in pairwise(ends)]
                self._lanes.append((client, writer, reader, batches))
        self._threads = ThreadPoolExecutor(2 * len(self._lanes))
        self._small = models.num_elements(work.shapes) <= SMALL

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            if self._small:
                for lane in self._lanes:
                    self._send(*lane)
                for lane in self._lanes:
                    self._take(*lane)
            else:
                work = [self._threads.submit(do, *lane) for lane in self._lanes for do in (self._send, self._take)]
                for future in work:
                    future.result(TIMEOUT)
            seconds.append(time.perf_counter() - started)
        return seconds

    @staticmethod
    def _send(client: object, writer: object, reader: object, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            writer.write_batch(batch)

    @staticmethod
    def _take(client: object, writer: object, reader: object, batches: list[pa.RecordBatch]) -> list[np.ndarray]:
        return [reader.read_chunk().data.column(0).to_numpy() for _ in batches]


class Flight:
    """Servers and workers on this host."""

    def __init__(self, work: Work) -> None:
        self._stack = ExitStack()
        transport, _, number = work.variant.partition("-")
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="zmqps-flight-")))
        kind = "grpc+unix://" if transport == "unix" else "grpc://127.0.0.1:0"
        names = [f"{kind}{folder}/{i}" if transport == "unix" else kind for i in range(work.servers)]
        servers = [self._stack.enter_context(Child(Server, name, int(number), work)) for name in names]
        for server in servers:
            server.result()
        if transport == "tcp":
            names = [f"grpc://127.0.0.1:{port}" for port in call_all(servers, "port")]
        self._workers = [
            self._stack.enter_context(Child(Worker, names, int(number), work)) for _ in range(work.workers)
        ]
        for worker in self._workers:
            worker.result()

    def steps(self, count: int) -> list[float]:
        """Return every worker's seconds of each step."""
        return [seconds for times in call_all(self._workers, "steps", count) for seconds in times]

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


if __name__ == "__main__":
    serve(Flight)
