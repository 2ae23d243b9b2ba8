"""The digits example in Keras: `compile` and `fit` as ever, the optimizer on the servers.

In a clone `pip install '.[keras]' scikit-learn`, and a backend of Keras; start servers with `make up`, then run
this in as many terminals as you like, with `KERAS_BACKEND=torch`, `jax` or `tensorflow`; or
`zmqps up --workers 2 -- python examples/keras_digits.py`.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import zmqps
import zmqps.keras


def load_data():
    images, digits = load_digits(return_X_y=True)
    return train_test_split(np.float32(images / 16), digits, test_size=0.2, random_state=0, stratify=digits)


def build_model(optimizer):
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu", name="hidden"),
            keras.layers.Dense(10, name="output"),
        ],
        name="digits",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def train(worker, args):
    x_train, x_test, y_train, y_test = load_data()
    keras.utils.set_random_seed(0)  # the same initial values on every worker
    model = build_model(zmqps.keras.Optimizer(worker, keras.optimizers.Adam(2e-3), mode=args.mode))
    mine = slice(worker.rank, len(y_train) // 32 * 32, worker.num_workers)
    model.fit(x_train[mine], y_train[mine], batch_size=args.batch, epochs=args.passes, verbose=0)
    zmqps.keras.pull(worker, model)  # with what others have pushed since
    accuracy = model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
    print(f"worker {worker.rank}: test accuracy {accuracy:.3f}")
    worker.finish()  # when all have, the cluster ends
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Train a digit classifier with Keras, together with all other runs of this script."
    )
    parser.add_argument("--coordinator", help="by default as the environment says: docs/connect.md")
    parser.add_argument("--passes", type=int, default=20, help="passes over the training data")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--mode", choices=("sync", "async"), default="sync", help="how workers keep step")
    options = parser.parse_args()
    with zmqps.connect(options.coordinator, timeout=60) as this:
        train(this, options)
