"""TensorFlow's parameter server in the style of version 1: variables on ps tasks, graphs on worker tasks, gRPC."""

from __future__ import annotations

import tensorflow as tf

from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve, shards
from bench.peers.tensorflow_tasks import Task, Tasks, v1


class Graph(Task):
    """A task that may be given a graph."""

    def build(self, work: Work) -> None:
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
        self._begin(tf.group(train, *pulled))


if __name__ == "__main__":
    serve(lambda work: Tasks(work, Graph))
