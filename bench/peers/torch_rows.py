"""Rows of a table in PyTorch: an `EmbeddingBag` on servers behind RPC, sparse gradients; or in one process alone.

``--variant uv``: everything over TCP. ``alone``: no servers. Otherwise TensorPipe's own choice, which on one host is
shared memory.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from typing import Protocol

import torch
from torch.distributed import rpc

from bench.children import Child, call_all
from bench.ids import RowWork
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Peer, serve_rows
from bench.peers.torch_rpc import TIMEOUT, TRANSPORTS

#: It has no row-wise Adagrad: one slot as long as a row stands in for it.
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
}


class Part:
    """The rows of one server, or all of them; its methods may be called remotely, in threads of that server."""

    def __init__(self, work: RowWork, num_parts: int) -> None:
        self._lock = threading.Lock()
        self._bag = torch.nn.EmbeddingBag(-(-work.rows // num_parts), work.dim, mode="sum", sparse=True)
        torch.nn.init.ones_(self._bag.weight)
        self._optimizer = OPTIMIZERS[work.optimizer](self._bag.parameters(), lr=LEARNING_RATE)

    @torch.no_grad()
    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows: a bag of one id each."""
        return self._bag(ids, torch.arange(len(ids)))

    def update(self, ids: torch.Tensor, grads: torch.Tensor) -> None:
        """Apply the gradients of different ids, as they would come from `backward`."""
        weight = self._bag.weight
        with self._lock:
            weight.grad = torch.sparse_coo_tensor(ids[None], grads, weight.shape, check_invariants=False)
            self._optimizer.step()


def lookup(part: rpc.RRef, ids: torch.Tensor) -> torch.Tensor:
    """Run on the server that owns the reference."""
    return part.local_value().lookup(ids)


def update(part: rpc.RRef, ids: torch.Tensor, grads: torch.Tensor) -> None:
    """Run on the server that owns the reference."""
    part.local_value().update(ids, grads)


class Parts(Protocol):
    """Where rows are."""

    def lookup(self, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of each part."""

    def update(self, ids: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Apply the gradients of each part."""


class Here:
    """All rows in this process."""

    def __init__(self, work: RowWork) -> None:
        self._part = Part(work, 1)

    def lookup(self, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows."""
        return [self._part.lookup(ids) for ids in wanted]

    def update(self, ids: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Apply the gradients."""
        self._part.update(ids[0], grads[0])


class Remote:
    """Rows on servers, all of which are asked at the same time."""

    def __init__(self, parts: list[rpc.RRef]) -> None:
        self._parts = parts

    def lookup(self, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of each part."""
        calls = [
            rpc.rpc_async(part.owner(), lookup, (part, ids), timeout=TIMEOUT)
            for part, ids in zip(self._parts, wanted, strict=True)
        ]
        return torch.futures.wait_all(calls)

    def update(self, ids: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Apply the gradients of each part."""
        calls = [
            rpc.rpc_async(part.owner(), update, (part, some, rows), timeout=TIMEOUT)
            for part, some, rows in zip(self._parts, ids, grads, strict=True)
        ]
        torch.futures.wait_all(calls)


class Trainer:
    """Pulls and pushes batches; each distinct row travels once."""

    def __init__(self, work: RowWork, parts: Parts, num_parts: int, worker: int) -> None:
        self._parts, self._num_parts = parts, num_parts
        self._batches = [torch.from_numpy(numbers) for numbers in work.batches(worker)]
        self._grads = torch.full((work.batch, work.dim), GRADIENT_SCALE)
        self._at = 0

    def step(self) -> None:
        """Pull the rows of a batch, then push their gradients."""
        batch = self._batches[self._at % len(self._batches)]
        self._at += 1
        different, inverse = torch.unique(batch, return_inverse=True)
        if self._num_parts == 1:
            [rows] = self._parts.lookup([different])
            sums = torch.zeros_like(rows).index_add_(0, inverse, self._grads)
            rows[inverse]
            self._parts.update([different], [sums])
            return
        which = different % self._num_parts
        places = [torch.nonzero(which == part)[:, 0] for part in range(self._num_parts)]
        wanted = [different[place] // self._num_parts for place in places]
        rows = torch.empty(len(different), self._grads.shape[1])
        for place, found in zip(places, self._parts.lookup(wanted), strict=True):
            rows[place] = found
        rows[inverse]
        sums = torch.zeros_like(rows).index_add_(0, inverse, self._grads)
        self._parts.update(wanted, [sums[place] for place in places])

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - started)
        return seconds


class Member:
    """A process that takes part: a server as it stands, or a worker once it knows the servers."""

    def __init__(self, name: str, rank: int, work: RowWork, port: int, variant: str) -> None:
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=TIMEOUT, **TRANSPORTS[variant]
        )
        rpc.init_rpc(name, rank=rank, world_size=work.servers + work.workers, rpc_backend_options=options)

    def attach(self, work: RowWork, worker: int) -> None:
        """Take the rows that the first worker made, or make them."""
        global _parts
        if worker == 0:
            _parts = [rpc.remote(f"server{i}", Part, (work, work.servers)) for i in range(work.servers)]
        else:
            _parts = rpc.rpc_sync("worker0", parts_of_first, timeout=TIMEOUT)
        self._trainer = Trainer(work, Remote(_parts), work.servers, worker)

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        return self._trainer.steps(count)

    def leave(self) -> None:
        """End the RPC agent."""
        rpc.shutdown(graceful=False)


_parts: list[rpc.RRef] = []


def parts_of_first() -> list[rpc.RRef]:
    """Run on the first worker: hand out its references."""
    return _parts


class TorchRows:
    """Servers and workers on this host."""

    def __init__(self, work: RowWork, variant: str) -> None:
        self._stack = ExitStack()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        names = [f"server{i}" for i in range(work.servers)] + [f"worker{i}" for i in range(work.workers)]
        self._members = [
            self._stack.enter_context(Child(Member, name, rank, work, port, variant)) for rank, name in enumerate(names)
        ]
        for member in self._members:
            member.result()
        self._workers = self._members[work.servers :]
        for number, worker in enumerate(self._workers):
            worker.call("attach", work, number)

    def steps(self, count: int) -> list[float]:
        """Return every worker's seconds of each step."""
        return [seconds for times in call_all(self._workers, "steps", count) for seconds in times]

    def close(self) -> None:
        """End the processes."""
        with self._stack:
            call_all(self._members, "leave")


class Alone(Trainer):
    """One process that has all rows."""

    def __init__(self, work: RowWork) -> None:
        super().__init__(work, Here(work), 1, 0)

    def close(self) -> None:
        """Nothing runs but this process."""


def start(work: RowWork, variant: str) -> Peer:
    """Return what a variant is."""
    return Alone(work) if variant == "alone" else TorchRows(work, variant)


if __name__ == "__main__":
    serve_rows(start)
