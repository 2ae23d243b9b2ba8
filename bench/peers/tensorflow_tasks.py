"""A cluster of TensorFlow's ps and worker tasks on this host, in the style of version 1; what they do is for others."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from bench.children import Child, call_all
from bench.ids import RowWork
from bench.peers.serve import Work

v1 = tf.compat.v1
v1.disable_eager_execution()


class Task:
    """One process of the cluster: a ps task as it stands, or a worker task once it has a graph (``build``)."""

    def __init__(self, cluster: dict[str, list[str]], job: str, index: int) -> None:
        self._server = v1.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index)
        self._here, self._index = f"/job:{job}/task:{index}", index

    def _begin(self, step: tf.Operation) -> None:
        """Take this for a step; the first worker makes the values on the ps tasks."""
        config = v1.ConfigProto(device_filters=["/job:ps", self._here])
        self._session = v1.Session(self._server.target, config=config)
        if self._index == 0:
            self._session.run(v1.global_variables_initializer())
        self._session.run(v1.local_variables_initializer())
        self._step = self._session.make_callable(step)

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._step()
            seconds.append(time.perf_counter() - started)
        return seconds


class Tasks:
    """Processes of a cluster.

    Parameters
    ----------
    work
        What they do.
    kind
        A `Task` whose ``build`` makes a graph of it.
    """

    def __init__(self, work: Work | RowWork, kind: Callable[[dict[str, list[str]], str, int], Task]) -> None:
        self._stack = ExitStack()
        with ExitStack() as ports:  # held all at once, so that they differ
            sockets = [
                ports.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
                for _ in range(work.servers + work.workers)
            ]
            addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
        cluster = {"ps": addresses[: work.servers], "worker": addresses[work.servers :]}
        tasks = [
            self._stack.enter_context(Child(kind, cluster, job, index))
            for job in cluster
            for index in range(len(cluster[job]))
        ]
        for task in tasks:
            task.result()
        self._workers = tasks[work.servers :]
        for worker in self._workers:
            worker.call("build", work)

    def steps(self, count: int) -> list[float]:
        """Return every worker's seconds of each step."""
        return [seconds for times in call_all(self._workers, "steps", count) for seconds in times]

    def close(self) -> None:
        """End the processes."""
        self._stack.close()
