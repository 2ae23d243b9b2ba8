"""Rows of a table on TensorFlow's parameter servers: gathered by a worker, their gradients scattered back, gRPC."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bench.ids import RowWork
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, serve_rows
from bench.peers.tensorflow_tasks import Task, Tasks, v1

#: It has no row-wise Adagrad: one slot as long as a row stands in for it.
OPTIMIZERS = {
    "sgd": v1.train.GradientDescentOptimizer,
    "adagrad": v1.train.AdagradOptimizer,
    "rowwise_adagrad": v1.train.AdagradOptimizer,
    "adam": v1.train.AdamOptimizer,
}


class Graph(Task):
    """A task that may be given a graph."""

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
        self._begin(tf.group(train, pulled))

    def _local(self, name: str, value: np.ndarray | np.generic) -> tf.Variable:
        """Return a variable of this worker that is not fed from Python."""
        return v1.get_variable(
            f"{name}{self._index}",
            initializer=value,
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
        )


if __name__ == "__main__":
    serve_rows(lambda work, variant: Tasks(work, Graph))
