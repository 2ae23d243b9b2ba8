"""TensorFlow's parameter server in the style of version 1: variables on ps tasks, graphs on worker tasks, gRPC."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, closing

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from bench.children import Child, call_all
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve, shards

v1 = tf.compat.v1
v1.disable_eager_execution()


class Task:
    """One process of the cluster: a ps task as it stands, or a worker task once it has a graph."""

    def __init__(self, cluster: dict[str, list[str]], job: str, index: int) -> None:
        self._server = v1.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index)
        self._here = f"/job:{job}/task:{index}"

    def build(self, work: Work, chief: bool) -> None:
        """Make the graph of a step: gradients go to the variables, each new value comes back at once."""
        variables, gradients, pulled = [], [], []
        home = {name: index for index, names in enumerate(shards(work.shapes, work.servers)) for name in names}
        for name, shape in work.shapes.items():
            with tf.device(f"/job:ps/task:{home[name]}"):
                variables.append(v1.get_variable(name, shape, tf.float32, v1.ones_initializer(), use_resource=True))
            with tf.device(self._here):
                gradient = v1.get_variable(
                    f"gradient/{name}",
                    shape,
                    tf.float32,
                    v1.constant_initializer(GRADIENT_SCALE),
                    trainable=False,
                    collections=[v1.GraphKeys.LOCAL_VARIABLES],
                    use_resource=True,
                )
                gradients.append(gradient.read_value())
        optimizers = {"sgd": v1.train.GradientDescentOptimizer, "adam": v1.train.AdamOptimizer}
        train = optimizers[work.optimizer](LEARNING_RATE).apply_gradients(zip(gradients, variables, strict=True))
        operations = v1.get_default_graph().get_operations()
        applied = {op.inputs[0].ref(): op for op in operations if op.type.startswith("ResourceApply")}
        for variable in variables:
            with tf.control_dependencies([applied[variable.handle.ref()]]):
                with tf.device(variable.device):
                    value = variable.read_value()
                with tf.device(self._here):
                    pulled.append(tf.identity(value).op)
        config = v1.ConfigProto(device_filters=["/job:ps", self._here])
        self._session = v1.Session(self._server.target, config=config)
        if chief:
            self._session.run(v1.global_variables_initializer())
        self._session.run(v1.local_variables_initializer())
        self._step = self._session.make_callable(tf.group(train, *pulled))

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

    def __init__(self, work: Work) -> None:
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
        for index, worker in enumerate(self._workers):  # the first one makes the variables' values
            worker.call("build", work, index == 0)

    def steps(self, count: int) -> list[float]:
        """Return every worker's seconds of each step."""
        return [seconds for times in call_all(self._workers, "steps", count) for seconds in times]

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


if __name__ == "__main__":
    serve(TensorFlow)
