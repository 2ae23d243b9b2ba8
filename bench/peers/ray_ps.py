"""Ray: a parameter server as an actor, gradients and values through the shared object store."""

from __future__ import annotations

import os
import time
import warnings

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray
import torch

from bench import models
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve, shards

TIMEOUT = 120.0


@ray.remote(num_cpus=0)
class ParameterServer:
    """The tensors of one server."""

    def __init__(self, work: Work, names: list[str]) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._parameters = [torch.nn.Parameter(torch.ones(work.shapes[name])) for name in names]
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self._optimizer = optimizers[work.optimizer](self._parameters, lr=LEARNING_RATE, fused=True)

    def update(self, gradients: list[np.ndarray]) -> list[np.ndarray]:
        """Apply gradients; return the new values."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        self._optimizer.step()
        return [parameter.detach().numpy() for parameter in self._parameters]


@ray.remote(num_cpus=0)
class Worker:
    """Sends gradients to every server and takes the values."""

    def __init__(self, work: Work, servers: list[ray.actor.ActorHandle]) -> None:
        arrays = models.arrays(work.shapes, GRADIENT_SCALE)
        self._servers = servers
        self._gradients = [[arrays[name] for name in names] for names in shards(work.shapes, work.servers)]

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            calls = [
                server.update.remote(ray.put(gradients))
                for server, gradients in zip(self._servers, self._gradients, strict=True)
            ]
            ray.get(calls, timeout=TIMEOUT)
            seconds.append(time.perf_counter() - started)
        return seconds


class Ray:
    """Actors on this host."""

    def __init__(self, work: Work) -> None:
        nbytes = models.num_bytes(work.shapes) * work.workers
        ray.init(
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=max(1 << 30, 8 * nbytes),
        )
        names = shards(work.shapes, work.servers)
        servers = [ParameterServer.remote(work, part) for part in names]
        self._workers = [Worker.remote(work, servers) for _ in range(work.workers)]
        self.steps(1)

    def steps(self, count: int) -> list[float]:
        """Return every worker's seconds of each step."""
        times = ray.get([worker.steps.remote(count) for worker in self._workers], timeout=TIMEOUT)
        return [seconds for worker in times for seconds in worker]

    def close(self) -> None:
        """End Ray's processes."""
        ray.shutdown()


if __name__ == "__main__":
    serve(Ray)
