"""Rows of a table on TensorFlow's parameter servers: gathered by a worker, their gradients scattered back, gRPC."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, closing

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from bench.children import Child, call_all
from bench.ids import RowWork
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, serve_rows

v1 = tf.compat.v1
v1.disable_eager_execution()

#: It has no row-wise Adagrad: one slot as long as a row stands in for it.
OPTIMIZERS = {
    "sgd": v1.train.GradientDescentOptimizer,
    "adagrad": v1.train.AdagradOptimizer,
    "rowwise_adagrad": v1.train.AdagradOptimizer,
    "adam": v1.train.AdamOptimizer,
}


class Task:
    """One process of the cluster: a ps task as it stands, or a worker task once it has a graph."""

    def __init__(self, cluster: dict[str, list[str]], job: str, index: int) -> None:
        self._server = v1.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index)
        self._here, self._index = f"/job:{job}/task:{index}", index

    def build(self, work: RowWork) -> None:
        """Make the graph of a step: a batch's rows come, then their gradients go; batches take turns."""
        tables = []
        for server in range(work.servers):
            with tf.device(f"/job:ps/task:{server}"):
                shape = (-(-work.rows // work.servers), work.dim)
                tables.append(
                    v1.get_variable(f"rows{server}", shape, tf.float32, v1.ones_initializer(), use_resource=True)
                )
        with tf.device(self._here):
            batches = self._local("batches", np.stack(work.batches(self._index)))
            turn = self._local("turn", np.int64(-1))
            grads = self._local("grads", np.full((work.batch, work.dim), GRADIENT_SCALE, np.float32))
            at = turn.assign_add(1, read_value=True)
            ids = tf.gather(batches, at % len(work.batches(0)))
            # each different row travels once; gradients of it are summed here, as zmqps' worker does
            different, inverse = tf.unique(ids, out_idx=tf.int64)
            found = v1.nn.embedding_lookup(tables, different, partition_strategy="mod")
            pulled = tf.gather(found, inverse)
            with tf.control_dependencies([pulled]):
                sums = tf.math.unsorted_segment_sum(grads.read_value(), inverse, tf.size(different))
            slices = tf.gradients(found, tables, grad_ys=sums)
        optimizer = OPTIMIZERS[work.optimizer](LEARNING_RATE)
        train = optimizer.apply_gradients(zip(slices, tables, strict=True))
        config = v1.ConfigProto(device_filters=["/job:ps", self._here])
        self._session = v1.Session(self._server.target, config=config)
        if self._index == 0:  # the first one makes the tables' values
            self._session.run(v1.global_variables_initializer())
        self._session.run(v1.local_variables_initializer())
        self._step = self._session.make_callable(tf.group(train, pulled))

    def _local(self, name: str, value: np.ndarray | np.generic) -> tf.Variable:
        """Return a variable of this worker that nobody feeds from Python."""
        return v1.get_variable(
            f"{name}{self._index}",
            initializer=value,
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
        )

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._step()
            seconds.append(time.perf_counter() - started)
        return seconds


class TensorFlow:
    """A cluster of ps and worker tasks on this host."""

    def __init__(self, work: RowWork, variant: str) -> None:
        self._stack = ExitStack()
        with ExitStack() as ports:  # held all at once, so that they differ
            sockets = [
                ports.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
                for _ in range(work.servers + work.workers)
            ]
            addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
        cluster = {"ps": addresses[: work.servers], "worker": addresses[work.servers :]}
        tasks = [
            self._stack.enter_context(Child(Task, cluster, job, index))
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


if __name__ == "__main__":
    serve_rows(TensorFlow)
