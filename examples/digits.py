"""Train a network on handwritten digits in numpy: `make up` first, then this in as many terminals as you like."""

import argparse
import dataclasses
import json
import os
import time

import numpy as np
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import zmqps

MODES = {"sync": None, "async": None, "bounded": 3}  # name -> staleness


def load_data():
    """Return x_train, x_test, y_train, y_test: images as rows of 64 floats from 0 to 1, and their digits."""
    images, digits = load_digits(return_X_y=True)
    return train_test_split(np.float32(images / 16), digits, test_size=0.2, random_state=0, stratify=digits)


def initial_params():
    weights = np.random.default_rng(0).normal(0, 1 / 8, (64, 64 + 10)).astype("f4")
    return {"w1": weights[:, :64], "b1": np.zeros(64, "f4"), "w2": weights[:, 64:], "b2": np.zeros(10, "f4")}


def forward(params, x):
    hidden = np.maximum(x @ params["w1"] + params["b1"], 0)
    return hidden, softmax(hidden @ params["w2"] + params["b2"], axis=1)


def loss_and_gradients(params, x, y):
    hidden, probability = forward(params, x)
    loss = -np.log(probability[np.arange(len(y)), y] + 1e-12).mean()  # cross-entropy
    d_scores = (probability - np.eye(10, dtype=x.dtype)[y]) / len(y)
    d_hidden = (d_scores @ params["w2"].T) * (hidden > 0)
    return loss, {"w1": x.T @ d_hidden, "b1": d_hidden.sum(0), "w2": hidden.T @ d_scores, "b2": d_scores.sum(0)}


def accuracy(params, x, y):
    return float((forward(params, x)[1].argmax(axis=1) == y).mean())


def train(worker, args):
    x_train, x_test, y_train, y_test = load_data()
    optimizer = zmqps.optim.adam(zmqps.optim.scale_linearly(2e-3, args.share, warmup_steps=50))
    staleness = args.staleness if args.mode == "bounded" else None
    worker.init(initial_params(), optimizer=optimizer, mode=args.mode, staleness=staleness, push_codec=args.codec)
    curve = []
    for number in range(args.passes):  # asks each time for this worker's batches: workers come and go
        order = np.random.default_rng(number).permutation(len(y_train))  # the same on every worker
        for batch in np.split(order, range(args.batch, len(order), args.batch))[worker.rank :: worker.num_workers]:
            try:
                loss, gradients = loss_and_gradients(model := worker.pull(), x_train[batch], y_train[batch])
                worker.push(gradients, examples=len(batch))
                worker.log({"loss": loss, "accuracy": accuracy(model, x_train[batch], y_train[batch])}, step=len(curve))
                curve.append((time.time(), float(loss)))
            except (zmqps.EvictedError, zmqps.PeerLostError):  # stopped or cut off for so long that others continued
                worker.rejoin(timeout=60)  # fails if the cluster is lost, or a server with a part of the model
    print(f"worker {worker.rank}: test accuracy {accuracy(worker.pull(), x_test, y_test):.3f},", worker.statistics())
    with open(args.report, "w") as file:
        json.dump({"rank": worker.rank, "curve": curve, **dataclasses.asdict(worker.statistics())}, file)
    worker.finish()  # when all have, the cluster ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a digit classifier, together with all other runs of this.")
    parser.add_argument("--coordinator", default=os.environ.get("ZMQPS_COORDINATOR", "tcp://127.0.0.1:5570"))
    parser.add_argument("--passes", type=int, default=30, help="passes over the training data")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--mode", choices=MODES, default="sync", help="how workers keep step")
    parser.add_argument("--staleness", type=int, default=MODES["bounded"], help="bounded: how many steps to be ahead")
    parser.add_argument("--share", type=int, default=1, help="sync: how many workers share a step, to make it longer")
    parser.add_argument("--codec", default="raw", help="how gradients travel, such as bf16, int8 or topk:fraction=0.1")
    parser.add_argument("--report", metavar="FILE", default=os.devnull, help="for losses and statistics, in JSON")
    options = parser.parse_args()
    with zmqps.connect(options.coordinator, timeout=60) as this:
        train(this, options)
