"""The digits example in JAX, with an optax loop whose optimizer is on the servers.

In a clone `pip install '.[jax]' scikit-learn`, start servers with `make up`, then run this in as many terminals
as you like; or `zmqps up --workers 2 -- python examples/jax_digits.py`.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import zmqps
import zmqps.jax


def load_data():
    images, digits = load_digits(return_X_y=True)
    return train_test_split(np.float32(images / 16), digits, test_size=0.2, random_state=0, stratify=digits)


def initial_params():
    first, second = jax.random.split(jax.random.key(0))
    return [
        {"w": jax.random.normal(first, (64, 64)) / 8, "b": jnp.zeros(64)},
        {"w": jax.random.normal(second, (64, 10)) / 8, "b": jnp.zeros(10)},
    ]


def scores(params, x):
    hidden, output = params
    return jax.nn.relu(x @ hidden["w"] + hidden["b"]) @ output["w"] + output["b"]


@jax.jit
@jax.grad
def gradient(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), y).mean()


def train(worker, args):
    x_train, x_test, y_train, y_test = load_data()
    params = initial_params()
    tx = zmqps.jax.optimizer(worker, zmqps.optim.adam(2e-3), mode=args.mode)
    state = tx.init(params)
    params = zmqps.jax.pull(worker, params)  # those of the job, if this worker comes later
    batches_in_all = len(y_train) // args.batch * args.batch  # all of one size, so nothing is recompiled
    for number in range(args.passes):
        order = np.random.default_rng(number).permutation(len(y_train))[:batches_in_all]  # the same on every worker
        for batch in order.reshape(-1, args.batch)[worker.rank :: worker.num_workers]:
            updates, state = tx.update(gradient(params, x_train[batch], y_train[batch]), state, params)
            params = optax.apply_updates(params, updates)
    params = zmqps.jax.pull(worker, params)
    accuracy = float((scores(params, x_test).argmax(axis=1) == y_test).mean())
    print(f"worker {worker.rank}: test accuracy {accuracy:.3f}")
    worker.finish()  # when all have, the cluster ends
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Train a digit classifier with JAX, together with all other runs of this script."
    )
    parser.add_argument("--coordinator", help="by default as the environment says: docs/connect.md")
    parser.add_argument("--passes", type=int, default=20, help="passes over the training data")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--mode", choices=("sync", "async"), default="sync", help="how workers keep step")
    options = parser.parse_args()
    with zmqps.connect(options.coordinator, timeout=60) as this:
        train(this, options)
