"""PyTorch RPC: a parameter server as in its tutorial; by its default transports, or as ``--variant`` says.

``uv``: everything over TCP. ``uv-mpt``: the same, tensors over several connections. ``cma``: the transport is TCP, but
the channel for tensors is TensorPipe's own choice, which on one host is to read the other process's memory
(``process_vm_readv``).
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack

import torch
from torch.distributed import rpc

from bench.children import Child, call_all
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve, shards

TIMEOUT = 120.0


class ParameterServer:
    """The tensors of one server; its method is called remotely, in a thread of that server."""

    def __init__(self, work: Work, names: list[str]) -> None:
        self._lock = threading.Lock()
        self._parameters = [torch.nn.Parameter(torch.ones(work.shapes[name])) for name in names]
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self._optimizer = optimizers[work.optimizer](self._parameters, lr=LEARNING_RATE, fused=True)

    def update(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Apply gradients; return the new values."""
        with self._lock:
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            self._optimizer.step()
            return [parameter.detach() for parameter in self._parameters]


def update_and_fetch(server: rpc.RRef, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run on the server that owns the reference."""
    return server.local_value().update(gradients)


TRANSPORTS = {
    "": {},
    "uv": {"_transports": ["uv"], "_channels": ["basic"]},
    "uv-mpt": {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]},
    "cma": {"_transports": ["uv"]},
}


class Member:
    """A process that takes part: a server as it stands, or a worker once it knows the servers."""

    def __init__(self, name: str, rank: int, work: Work, port: int) -> None:
        transports = TRANSPORTS[work.variant]
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=TIMEOUT, **transports
        )
        rpc.init_rpc(name, rank=rank, world_size=work.servers + work.workers, rpc_backend_options=options)

    def create(self, work: Work) -> list[rpc.RRef]:
        """Make the tensors on the servers."""
        names = shards(work.shapes, work.servers)
        return [rpc.remote(f"server{i}", ParameterServer, (work, names[i])) for i in range(work.servers)]

    def attach(self, first: str, work: Work) -> None:
        """Take the servers that the first worker made, or make them."""
        global _servers
        mine = rpc.get_worker_info().name == first
        _servers = self.create(work) if mine else rpc.rpc_sync(first, servers_of_first, timeout=TIMEOUT)
        names = shards(work.shapes, work.servers)
        self._gradients = [[torch.full(work.shapes[name], GRADIENT_SCALE) for name in part] for part in names]

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            calls = [
                rpc.rpc_async(server.owner(), update_and_fetch, (server, gradients), timeout=TIMEOUT)
                for server, gradients in zip(_servers, self._gradients, strict=True)
            ]
            torch.futures.wait_all(calls)
            seconds.append(time.perf_counter() - started)
        return seconds

    def leave(self) -> None:
        """End the RPC agent."""
        rpc.shutdown(graceful=False)


_servers: list[rpc.RRef] = []


def servers_of_first() -> list[rpc.RRef]:
    """Run on the first worker: hand out its references."""
    return _servers


class TorchRpc:
    """Servers and workers on this host."""

    def __init__(self, work: Work) -> None:
        self._stack = ExitStack()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        names = [f"server{i}" for i in range(work.servers)] + [f"worker{i}" for i in range(work.workers)]
        self._members = [
            self._stack.enter_context(Child(Member, name, rank, work, port)) for rank, name in enumerate(names)
        ]
        for member in self._members:
            member.result()
        self._workers = self._members[work.servers :]
        for worker in self._workers:
            worker.call("attach", "worker0", work)

    def steps(self, count: int) -> list[float]:
        """Return every worker's seconds of each step."""
        return [seconds for times in call_all(self._workers, "steps", count) for seconds in times]

    def close(self) -> None:
        """End the processes."""
        with self._stack:
            call_all(self._members, "leave")


if __name__ == "__main__":
    serve(TorchRpc)
